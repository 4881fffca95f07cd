// Command coordsvc keeps coordination state for application backends: sessions,
// rate limits, leases, fencing tokens.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"slices"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Getenv, os.Stdout, os.Stderr, func(addresses) {})
	stop()
	switch {
	case err == nil || errors.Is(err, flag.ErrHelp):
	default:
		fmt.Fprintln(os.Stderr, "coordsvc:", err)
		os.Exit(1)
	}
}

const usage = `coordsvc keeps coordination state: sessions, rate limits, leases, fencing tokens.

  coordsvc serve                     run the service; without settings on an embedded store
  coordsvc tables create             create the DynamoDB tables that are missing
  coordsvc tables raise-floor        have every new fencing token exceed those before a loss or a restore
  coordsvc keys create --tenant T    make an API key and print it
  coordsvc policy lint FILE|DIR      say everything that is wrong with policy files
  coordsvc policy explain FILE|DIR   say which limits, keys and overrides a request meets; --help has its flags
  coordsvc backup DIR                copy the embedded store, while it is in use, to a new data folder
  coordsvc doctor [-o json]          say what is set up wrong, with the settings of serve; fails where something is
  coordsvc healthcheck [--ready]     ask the service on this machine whether it lives, or is ready; fails where not
  coordsvc version

Each takes --help. A setting is an environment variable or the flag of the same
name: COORD_HTTP_ADDR is --http-addr, and the flag wins.
`

// run is the whole program: everything it reads and writes is handed to it.
// ready is called once when serve answers requests.
func run(ctx context.Context, args []string, getenv func(string) string, stdout, stderr io.Writer, ready func(addresses)) error {
	if len(args) == 0 {
		fmt.Fprint(stderr, usage)
		return errors.New("name a command")
	}
	command, args := args[0], args[1:]
	if slices.ContainsFunc(args, asksHelp) {
		stderr = stdout // where flags write their help
	}
	switch command {
	case "serve":
		return serve(ctx, args, getenv, stdout, stderr, ready)
	case "tables":
		return tables(ctx, args, getenv, stdout, stderr)
	case "keys":
		return keys(ctx, args, getenv, stdout, stderr)
	case "policy":
		return policyFiles(ctx, args, stdout, stderr)
	case "backup":
		return backup(ctx, args, getenv, stdout, stderr)
	case "doctor":
		return diagnose(ctx, args, getenv, stdout, stderr)
	case "healthcheck":
		return healthcheck(ctx, args, getenv, stdout, stderr)
	case "version", "-version", "--version":
		fmt.Fprintln(stdout, version())
		return nil
	case "help", "-h", "--h", "-help", "--help":
		fmt.Fprint(stdout, usage)
		return nil
	default:
		fmt.Fprint(stderr, usage)
		return fmt.Errorf("there is no command %q", command)
	}
}

// asksHelp reports whether the argument does, as package flag reads it.
func asksHelp(arg string) bool { return slices.Contains([]string{"-h", "--h", "-help", "--help"}, arg) }

// needsSubcommand answers a command that has subcommands and was called without one of them:
// its usage is what was asked for, or else the mistake.
func needsSubcommand(args []string, stdout io.Writer, usage string) error {
	if len(args) > 0 && asksHelp(args[0]) {
		fmt.Fprintln(stdout, usage)
		return nil
	}
	return errors.New(usage)
}

// version names the build as the Go toolchain stamped it.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "coordsvc (unknown build)"
	}
	return fmt.Sprintf("coordsvc %s %s", info.Main.Version, info.GoVersion)
}
