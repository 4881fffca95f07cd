// Command session is an example: a web application that keeps the sessions of its
// users itself, as a library, without the service. Run it and open the address
// that it prints.
package main

import (
	"context"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"time"

	"github.com/coordsvc/coordsvc/embedded"
	"github.com/coordsvc/coordsvc/session"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// run serves until the context ends.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("session", flag.ContinueOnError)
	flags.SetOutput(stderr)
	addr := flags.String("addr", "localhost:8080", "where to listen")
	if err := flags.Parse(args); err != nil {
		return err
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", *addr)
	if err != nil {
		return err
	}
	store := session.NewLocal(embedded.Memory())
	server := &http.Server{
		Handler:           newSite(store, slog.New(slog.NewTextHandler(stderr, nil)), time.Now),
		ReadHeaderTimeout: 5 * time.Second,
	}
	// Browsers send a Secure cookie over plain HTTP to localhost alone, and not all
	// of them do: elsewhere TLS ends here or in a proxy.
	host, _, _ := net.SplitHostPort(*addr) // it was good enough to listen
	_, port, _ := net.SplitHostPort(listener.Addr().String())
	_, _ = fmt.Fprintf(stdout, "http://%s/  (ann, demo)\n", net.JoinHostPort(host, port))

	done := make(chan error, 1)
	go func() { done <- server.Serve(listener) }()
	select {
	case err = <-done:
	case <-ctx.Done():
		grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		err = server.Shutdown(grace)
	}
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// newRouteKey makes a key that is as old as the data: here they are in memory. A
// store that outlives the process needs the same key every time.
func newRouteKey() []byte {
	key := make([]byte, 32)
	_, _ = rand.Read(key) // never fails
	return key
}
