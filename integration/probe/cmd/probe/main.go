// The probe command decides whether an engine at an address is good enough to
// test coordination on: it prints each check's outcome, or with -bench how fast
// the engine renews leases.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"

	"github.com/coordsvc/coordsvc/integration/engine"
	"github.com/coordsvc/coordsvc/integration/probe"
)

func main() {
	endpoint := flag.String("endpoint", "http://127.0.0.1:8000", "the engine's URL")
	ttl := flag.Duration("ttl", 0, "how long to wait for expired items to vanish; 0 leaves that check out")
	bench := flag.Bool("bench", false, "measure instead of checking")
	d := flag.Duration("d", 4*time.Second, "how long each measurement runs")
	flag.Parse()
	client := dynamodb.New(dynamodb.Options{
		Region:       "us-east-1",
		BaseEndpoint: endpoint,
		Credentials:  credentials.NewStaticCredentialsProvider("AKIDLOCAL", "secret", ""),
		Retryer:      aws.NopRetryer{},
	})
	run := func() error { return check(os.Stdout, client, *ttl) }
	if *bench {
		run = func() error { return measure(os.Stdout, client, *d) }
	}
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func check(w io.Writer, client *dynamodb.Client, ttl time.Duration) error {
	results := probe.Run(context.Background(), client, engine.FreshPrefix()+"probe", ttl)
	passed := 0
	for _, r := range results {
		mark := "FAIL"
		if r.OK {
			mark = "ok"
			passed++
		}
		fmt.Fprintf(w, "%-4s %-82s %8s %s\n", mark, r.Name, r.Dur.Round(time.Millisecond), r.Detail)
	}
	if passed < len(results) {
		return fmt.Errorf("%d of %d checks passed", passed, len(results))
	}
	fmt.Fprintf(w, "%d of %d checks passed\n", passed, len(results))
	return nil
}

func measure(w io.Writer, client *dynamodb.Client, d time.Duration) error {
	for _, goroutines := range []int{1, 16} {
		r, err := probe.Bench(context.Background(), client, engine.FreshPrefix()+"bench", goroutines, d)
		if err != nil {
			return err
		}
		fmt.Fprintf(w, "goroutines=%-3d ops/s=%-8.0f p50=%-10s p99=%-10s n=%d\n",
			r.Goroutines, r.OpsPerSec, r.P50.Round(time.Microsecond), r.P99.Round(time.Microsecond), r.N)
	}
	return nil
}
