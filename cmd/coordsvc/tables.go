package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"time"

	"github.com/coordsvc/coordsvc/fencing"
	"github.com/coordsvc/coordsvc/internal/dynamo"
	"github.com/coordsvc/coordsvc/internal/kv"
	"github.com/coordsvc/coordsvc/lease"
)

// tables runs coordsvc tables create, coordsvc tables raise-floor.
func tables(ctx context.Context, args []string, getenv func(string) string, stdout, stderr io.Writer) error {
	if len(args) > 0 && args[0] == "create" {
		return createTables(ctx, args[1:], getenv, stdout, stderr)
	}
	if len(args) > 0 && args[0] == "raise-floor" {
		return raiseFloor(ctx, args[1:], getenv, stdout, stderr)
	}
	return errors.New("usage: coordsvc tables create, or coordsvc tables raise-floor [--to N]")
}

// raiseFloor is for tables, or an embedded store, that lost items or were restored
// from a copy: their counters would hand out tokens again. Raised to what it is
// already, it is harmless.
func raiseFloor(ctx context.Context, args []string, getenv func(string) string, stdout, stderr io.Writer) error {
	fs := flag.NewFlagSet("coordsvc tables raise-floor", flag.ContinueOnError)
	// Counters begin at 1, or at such a floor, and grow by far less than one in a
	// millisecond: none that was lost can have come further than the clock.
	to := fs.Int64("to", time.Now().UnixMilli(), "the largest fencing token that may have been handed out or admitted before; by default the time in ms, which no counter reaches")
	c, err := loadConfig(fs, args, getenv, stderr, needsStore, takesFlagsOnly(fs))
	if err != nil {
		return err
	}
	s, err := openStores(ctx, c)
	if errors.Is(err, kv.ErrLocked) {
		return fmt.Errorf("another process serves the data folder %s: end it first", c.dataDir)
	}
	if err != nil {
		return err
	}
	floor, err := lease.New(s.leases, lease.Options{}).RaiseFloor(ctx, fencing.Token(*to))
	if err = errors.Join(err, s.close()); err != nil {
		return err
	}
	by := time.Now()
	if !c.embedded() {
		by = by.Add(lease.FloorDelay)
	}
	fmt.Fprintf(stdout, "floor %d\nevery token granted after %s exceeds it\n", floor, by.UTC().Format(time.RFC3339))
	return nil
}

// createTables makes what is missing: again is harmless.
func createTables(ctx context.Context, args []string, getenv func(string) string, stdout, stderr io.Writer) error {
	fs := flag.NewFlagSet("coordsvc tables create", flag.ContinueOnError)
	c, err := loadConfig(fs, args, getenv, stderr, needsDynamoDB, takesFlagsOnly(fs))
	if err != nil {
		return err
	}
	client, err := dynamoClient(ctx, c)
	if err != nil {
		return err
	}
	tables := dynamoTables(c.tablePrefix)
	if err := dynamo.Create(ctx, client, tables...); err != nil {
		return err
	}
	for _, table := range tables {
		fmt.Fprintf(stdout, "%s stands\n", table.Name)
	}
	return nil
}
