package main

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"os"
	"regexp"
	"strconv"
	"strings"
	"unicode"
)

// exporterMistakes are those in the settings that the exporter reads itself: it would write
// them to stderr, a wrong header with its secret, and go on without.
func exporterMistakes(getenv func(string) string) (mistakes []error) {
	for _, scope := range []string{"OTEL_EXPORTER_OTLP_", "OTEL_EXPORTER_OTLP_TRACES_"} {
		value := func(name string) string { return strings.TrimSpace(getenv(scope + name)) }
		wrong := func(name, fix string) {
			mistakes = append(mistakes, fmt.Errorf("%s%s %s", scope, name, fix))
		}
		if v := value("HEADERS"); v != "" && !rightHeaders(v) {
			wrong("HEADERS", "is wrong: write name=value,name=value, with percent signs before what is special") // not the value, which is a secret
		}
		if v := value("TIMEOUT"); v != "" {
			if ms, err := strconv.ParseUint(v, 10, 31); err != nil || ms == 0 {
				wrong("TIMEOUT", fmt.Sprintf("is %q: write a number of milliseconds", v))
			}
		}
		switch v := value("PROTOCOL"); v {
		case "", "http/protobuf", "http/json":
		default:
			wrong("PROTOCOL", fmt.Sprintf("is %q: write http/protobuf, or leave it unset for that; collectors take it on port 4318", v))
		}
		if v := value("CERTIFICATE"); v != "" {
			if err := readAuthorities(v); err != nil {
				wrong("CERTIFICATE", "names no file with certificates of authorities in PEM: "+err.Error())
			}
		}
		if cert, key := value("CLIENT_CERTIFICATE"), value("CLIENT_KEY"); cert != "" || key != "" {
			if _, err := tls.LoadX509KeyPair(cert, key); err != nil {
				wrong("CLIENT_CERTIFICATE", "and "+scope+"CLIENT_KEY name no certificate and its key in PEM: "+err.Error())
			}
		}
	}
	return mistakes
}

// headerName is a token of RFC 9110.
var headerName = regexp.MustCompile("^[!#$%&'*+.^_`|~0-9A-Za-z-]+$")

func rightHeaders(list string) bool {
	for pair := range strings.SplitSeq(list, ",") {
		name, raw, found := strings.Cut(pair, "=")
		value, err := url.PathUnescape(raw)
		if !found || err != nil || !headerName.MatchString(strings.TrimSpace(name)) || strings.ContainsFunc(strings.TrimSpace(value), unicode.IsControl) {
			return false
		}
	}
	return true
}

func readAuthorities(path string) error {
	text, err := os.ReadFile(path) //nolint:gosec // the path is a setting
	if err == nil && !x509.NewCertPool().AppendCertsFromPEM(text) {
		err = errors.New("it has none")
	}
	return err
}

// maxSaid is how much of why spans were not sent goes to the log, in bytes.
const maxSaid = 300

// notSent is why spans were not sent, without the body that the collector answered: that may be
// long, and may repeat the headers that it was sent.
func notSent(err error) string {
	said, _, _ := strings.Cut(err.Error(), "body: ")
	said = strings.TrimRight(said, " (:")
	if len(said) > maxSaid {
		said = strings.ToValidUTF8(said[:maxSaid], "") + "…"
	}
	return said
}
