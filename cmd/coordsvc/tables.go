package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"

	"github.com/coordsvc/coordsvc/internal/dynamo"
)

// tables runs coordsvc tables create: again is harmless.
func tables(ctx context.Context, args []string, getenv func(string) string, stdout, stderr io.Writer) error {
	if len(args) == 0 || args[0] != "create" {
		return errors.New("usage: coordsvc tables create")
	}
	fs := flag.NewFlagSet("coordsvc tables create", flag.ContinueOnError)
	c, err := loadConfig(fs, args[1:], getenv, stderr, needsDynamoDB)
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
