#!/bin/sh
# Kafka's tool of this name, as librdkafka's tests call it: the action is a flag there and a verb with us.
verb=describe
for argument in "$@"; do
    shift
    case "$argument" in
        --create | --delete | --alter | --list | --describe) verb=${argument#--} ;;
        *) set -- "$@" "$argument" ;;
    esac
done
exec "${ZURAU:?the path of the program zurau}" topics "$verb" "$@"
