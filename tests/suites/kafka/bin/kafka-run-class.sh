#!/bin/sh
# Kafka's tool of this name, as the Java helpers of librdkafka's tests call it: Kafka's own client beside their classes.
exec java -cp "$CLASSPATH:$(dirname "$0")/../libs/*" "$@"
