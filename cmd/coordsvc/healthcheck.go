package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"
)

// healthTime bounds one health check: less than the time that an image's HEALTHCHECK gives it.
const healthTime = 3 * time.Second

// healthcheck asks the ops listener of the service beside it: an image from scratch has
// no curl. It fails unless the answer is 200.
//
// It asks whether the process lives, not whether it is ready: who restarts containers for a failed
// check would otherwise restart every node while a store is down.
func healthcheck(ctx context.Context, args []string, getenv func(string) string, stdout, stderr io.Writer) error {
	fs := flag.NewFlagSet("coordsvc healthcheck", flag.ContinueOnError)
	fs.SetOutput(stderr)
	ops := fs.String("ops-addr", getenv("COORD_OPS_ADDR"), "address of health and metrics, as of serve ("+defaultOpsAddr+"); COORD_OPS_ADDR")
	ready := fs.Bool("ready", false, "ask whether the service is ready for requests, and not only whether it lives")
	if err := fs.Parse(args); err != nil {
		return err
	}
	path := "/healthz"
	if *ready {
		path = "/readyz"
	}
	var addr string
	err := setAddr(&addr, *ops, defaultOpsAddr)
	if _, port, _ := net.SplitHostPort(addr); err == nil && strings.Trim(port, "0") == "" {
		err = fmt.Errorf("is %q: the service picks such a port itself, and nobody else knows which", *ops)
	}
	if err != nil {
		err = fmt.Errorf("COORD_OPS_ADDR (--ops-addr) %w", err)
	}
	if err := errors.Join(err, takesFlagsOnly(fs)(config{})); err != nil {
		return err
	}
	line, err := askHealth(ctx, "http://"+dialable(addr)+path)
	if err != nil {
		return err
	}
	fmt.Fprintln(stdout, line)
	return nil
}

// askHealth returns the first line of the answer where its status is 200.
func askHealth(ctx context.Context, url string) (line string, err error) {
	ctx, cancel := context.WithTimeout(ctx, healthTime)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	transport := &http.Transport{DisableKeepAlives: true} // and no proxy, whatever the environment names
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return "", fmt.Errorf("%s: %w", url, err)
	}
	defer func() { err = cmp.Or(err, resp.Body.Close()) }()
	text, err := io.ReadAll(io.LimitReader(resp.Body, 1024))
	if err != nil {
		return "", fmt.Errorf("%s: %w", url, err)
	}
	line, _, _ = strings.Cut(string(text), "\n")
	if resp.StatusCode != http.StatusOK {
		return "", fmt.Errorf("%s: %s: %s", url, resp.Status, line)
	}
	return line, nil
}
