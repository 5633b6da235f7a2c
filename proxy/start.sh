#!/bin/sh
# Starts nginx in a container. nginx looks the app's address up again and again, since a new container has
# another, and does not read resolv.conf: who is asked differs between Docker, podman and clusters.
set -eu
resolver=$(awk '$1 == "nameserver" { print ($2 ~ /:/) ? "[" $2 "]" : $2 " ipv6=off"; exit }' /etc/resolv.conf)
# A cluster's resolver wants the whole name: what is searched first there is NAMESPACE.svc.cluster.local.
app=flask$(awk '$1 == "search" && $2 ~ /\.svc\./ { print "." $2; exit }' /etc/resolv.conf):5000
# Where those who come without TLS are sent to (tls.conf).
tls=:${WEB_TLS_PORT:-443}
cat >/tmp/app.conf <<END
resolver $resolver valid=2s;
resolver_timeout 2s;
set \$app $app;
set \$tls_port "${tls#:443}";
END
exec nginx -g 'daemon off;'
