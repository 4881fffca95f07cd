package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"

	"github.com/coordsvc/coordsvc/fencing"
	"github.com/coordsvc/coordsvc/internal/dynamo"
	"github.com/coordsvc/coordsvc/internal/kv"
	"github.com/coordsvc/coordsvc/internal/schema"
	"github.com/coordsvc/coordsvc/keytype"
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
	return needsSubcommand(args, stdout, "usage: coordsvc tables create, or coordsvc tables raise-floor [--to N]; each takes --help")
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
	var floor fencing.Token
	if err = s.tablesStand(ctx, c); err == nil {
		floor, err = lease.New(s.leases, lease.Options{}).RaiseFloor(ctx, fencing.Token(*to))
	}
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

// tablesStand names the tables that are missing, and the command that makes them. The
// embedded store has none.
func (s stores) tablesStand(ctx context.Context, c config) error {
	if s.tables == nil {
		return nil
	}
	err := dynamo.Check(ctx, s.tables, schema.Tables(c.tablePrefix)...)
	if _, missing := errors.AsType[*dynamo.MissingError](err); missing {
		return fmt.Errorf("%w: run coordsvc tables create", err)
	}
	return err
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
	tables := schema.Tables(c.tablePrefix)
	if err := answers(ctx, client, tables); err != nil {
		return err
	}
	if err := dynamo.Create(ctx, client, tables...); err != nil {
		return err
	}
	for _, table := range tables {
		fmt.Fprintf(stdout, "%s stands\n", table.Name)
	}
	return nil
}

// answerTime is how long a person who makes tables is left without an answer.
const answerTime = 5 * time.Second

// answers finds out whether DynamoDB answers at all before anything is made.
func answers(ctx context.Context, client *dynamodb.Client, tables []dynamo.Table) error {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	if err := dynamo.Check(ctx, client, tables...); errors.Is(err, keytype.ErrUnavailable) {
		return fmt.Errorf("DynamoDB does not answer, nothing was made: %w", err)
	}
	return nil // what else is wrong the creation says, where it does not mend it
}
