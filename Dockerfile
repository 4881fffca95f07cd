# The image of a release, built from source: docker build -t coordsvc .
FROM golang:1.26-bookworm AS build

WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
# With its debugger's tables (-w) and symbols (-s) left out; stack traces keep their names. The
# profile is that of a loaded service (make serve-profile).
RUN CGO_ENABLED=0 go build -pgo=cmd/coordsvc/serve.pgo -trimpath -ldflags='-s -w' -o /out/coordsvc ./cmd/coordsvc \
    && mkdir -m 0700 /out/data

FROM scratch

COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/
COPY --from=build --chown=65532:65532 /out/data /data
COPY --from=build /out/coordsvc /coordsvc

# Nobody: only /data is theirs, and the rest may be read-only.
USER 65532:65532
VOLUME ["/data"]

# Inside a container an address of the machine's own would be nobody's.
ENV COORD_DATA_DIR=/data \
    COORD_HTTP_ADDR=:8080 \
    COORD_OPS_ADDR=:9090

# The API; health and metrics, which ask for no key; Envoy's protocol where COORD_GRPC_ADDR=:9091.
EXPOSE 8080 9090 9091

HEALTHCHECK --interval=10s --timeout=5s --start-period=10s --retries=3 \
    CMD ["/coordsvc", "healthcheck"]

ENTRYPOINT ["/coordsvc"]
CMD ["serve"]
