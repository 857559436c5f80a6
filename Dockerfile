# All of Zürau in one small image: broker, controller and the admin's tools.
#
#   docker build -t zurau .
#   docker run zurau zurau-controller   # or zurau-broker, or zurau VERB
FROM rust:1.95-slim-bookworm AS build
LABEL zurau.stage=build
WORKDIR /zurau
# Function names stay for backtraces; the lines go.
ENV CARGO_PROFILE_RELEASE_STRIP=debuginfo
# Takes half of the time of the build; the tests turn it off.
ARG CARGO_PROFILE_RELEASE_LTO=thin
COPY . .
RUN cargo build --release --locked -p zurau -p zurau-broker -p zurau-controller

FROM debian:bookworm-slim
RUN groupadd --gid 1000 zurau \
    && useradd --uid 1000 --gid zurau --no-create-home --home-dir /var/lib/zurau --shell /usr/sbin/nologin zurau \
    && install -d -o zurau -g zurau /var/lib/zurau
COPY --from=build /zurau/target/release/zurau /zurau/target/release/zurau-broker \
    /zurau/target/release/zurau-controller /usr/local/bin/
USER zurau
ENV KAFKA_LOG_DIRS=/var/lib/zurau KAFKA_HTTP_LISTENER=:9644
EXPOSE 9092 9644
HEALTHCHECK --interval=5s --timeout=5s --start-period=1h --retries=3 CMD ["zurau", "health"]
CMD ["zurau-broker"]
