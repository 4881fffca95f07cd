// Command bench measures coordsvc beside the least that its work can cost (a
// floor) and beside peers, in one interleaved run on one machine, and prints
// ratios: absolute figures say more of the machine than of the programs.
//
//	go run .                       # rate limits
//	go run . -only '^HTTP: '       # some of them
//	go run . -sessions             # session checks
//	go run . -instrumentation      # what metrics and traces cost
//
// It also counts what leases ask of DynamoDB, beside another library where one is given:
//
//	go run . -compare-locks -peer "some program"
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// run measures, or is one of the programs that are measured: each of them is a
// process of its own, so that its CPU time can be told apart.
func run(ctx context.Context, args []string) error {
	if len(args) == 3 && args[0] == "floor" {
		return serveFloor(ctx, args[1], args[2])
	}
	if len(args) == 3 && args[0] == "scs" {
		return serveSCS(ctx, args[1], args[2])
	}
	if len(args) == 4 && args[0] == limitFloorArg {
		return serveLimitFloor(ctx, args[1], args[2], args[3])
	}
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	o := options{}
	flags.IntVar(&o.rounds, "rounds", 15, "rounds; each runs every case once, in changing order")
	flags.IntVar(&o.requests, "requests", 10000, "requests of one case in one round")
	flags.IntVar(&o.connections, "connections", 64, "connections, each with one request at a time")
	flags.StringVar(&o.only, "only", "", "of rate limits only the cases whose names this regular expression finds")
	flags.StringVar(&o.peers, "peers", "../.tools/bin", "folder of the peers' programs; `make bench` installs them")
	flags.StringVar(&o.program, "coordsvc", "", "program to measure; built from this tree where it is not given")
	dress := flags.Bool("instrumentation", false, "measure what metrics and traces cost of a decision instead")
	checks := flags.Bool("sessions", false, "measure session checks instead")
	locks := flags.Bool("compare-locks", false, "count the requests of leases instead, also where an answer is lost")
	peer := flags.String("peer", "", "with compare-locks: a program that does the same with another library, as peer.go says")
	if err := flags.Parse(args); err != nil {
		return err
	}
	switch {
	case *locks:
		return compareLocks(ctx, os.Stdout, *peer)
	case *dress:
		return instrumentation(ctx, o, os.Stdout)
	case *checks:
		return sessions(ctx, o)
	default:
		return limits(ctx, o, os.Stdout)
	}
}

// options are what a run is made of.
type options struct {
	rounds, requests, connections int
	only, peers, program          string
}

// limitFloorArg makes this program the floor of rate limits.
const limitFloorArg = "limit-floor"
