// Command enforcement-action is an example: workers carry out what moderators decide
// about accounts, each action once, though answers are lost, actions are delivered
// twice and a worker sleeps through its lease. It runs the exercise and checks it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "enforcement-action:", err)
		os.Exit(1)
	}
}

// run does the exercise on the service at -url, else on one that it starts.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) (err error) {
	flags := flag.NewFlagSet("enforcement-action", flag.ContinueOnError)
	flags.SetOutput(stderr)
	url := flags.String("url", "", "a service that runs already, for example http://127.0.0.1:8080; by default one is started")
	keyFile := flags.String("key-file", "", "with -url: a file with an API key of that service, for example coordsvc-data/first-key")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if (*url == "") != (*keyFile == "") {
		return errors.New("-url and -key-file go together")
	}
	service, key := *url, ""
	if service != "" {
		key, err = readKey(*keyFile)
		if err != nil {
			return err
		}
	} else {
		fmt.Fprintln(stdout, "starting a service on its embedded store")
		var end func() error
		service, key, end, err = startService(ctx, stderr)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, end()) }()
	}
	e, err := newExercise(service, key, stdout)
	if err != nil {
		return err
	}
	return e.run(ctx)
}
