"""The worker process: its loop, how it rests, and how others see it."""

from pgembed_django.worker.worker import Worker

__all__ = ["Worker"]
