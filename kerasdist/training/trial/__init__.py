"""The trial before the first step: does a program give, on replicas, what one device gives?"""
