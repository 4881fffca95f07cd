// Command bench measures coordsvc beside the least that its work can cost (a
// floor) and beside a peer, in one interleaved run on one machine, and prints
// ratios: absolute figures say more of the machine than of the programs.
//
//	go run . -rounds 15
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
	"runtime"
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
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	o := options{}
	flags.IntVar(&o.rounds, "rounds", 15, "rounds; each runs every case once, in turn")
	flags.IntVar(&o.requests, "requests", 8000, "requests of one case in one round")
	flags.IntVar(&o.connections, "connections", 64, "connections, each with one request at a time")
	locks := flags.Bool("compare-locks", false, "count the requests of leases instead, also where an answer is lost")
	peer := flags.String("peer", "", "with compare-locks: a program that does the same with another library, as peer.go says")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *locks {
		return compareLocks(ctx, os.Stdout, *peer)
	}
	fmt.Printf("%s, %d cores, %d rounds × %d requests, %d connections\n", runtime.Version(), runtime.NumCPU(), o.rounds, o.requests, o.connections)
	return sessions(ctx, o)
}

// options are what a run is made of.
type options struct{ rounds, requests, connections int }
