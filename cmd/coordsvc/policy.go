package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/coordsvc/coordsvc/internal/telemetry"
	"github.com/coordsvc/coordsvc/ratelimit"
	"github.com/coordsvc/coordsvc/ratelimit/policy"
	"github.com/coordsvc/coordsvc/ratelimit/redislimit"
)

const policyUsage = "usage: coordsvc policy lint FILE|DIR, or coordsvc policy explain --policy P [--tenant T] --descriptor k=v … FILE|DIR"

// policyFiles runs coordsvc policy lint and coordsvc policy explain. What they find goes to stdout.
func policyFiles(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	if len(args) > 0 && args[0] == "lint" {
		return lintPolicies(args[1:], stdout, stderr)
	}
	if len(args) > 0 && args[0] == "explain" {
		return explainPolicy(ctx, args[1:], stdout, stderr)
	}
	return needsSubcommand(args, stdout, policyUsage)
}

func lintPolicies(args []string, stdout, stderr io.Writer) error {
	fs := flag.NewFlagSet("coordsvc policy lint", flag.ContinueOnError)
	set, err := loadPolicies(fs, args, stderr)
	if wrong, ok := errors.AsType[*policy.MistakesError](err); ok {
		fmt.Fprintln(stdout, wrong)
		return fmt.Errorf("%d mistakes", len(wrong.Mistakes))
	}
	if err != nil {
		return err
	}
	for _, note := range set.Notes {
		fmt.Fprintln(stdout, "note:", note)
	}
	limiter, err := ratelimit.New(nil, set.Policies, ratelimit.Options{})
	if err != nil {
		return err
	}
	fmt.Fprintf(stdout, "%d policies are right, version %s\n", len(set.Policies), limiter.Version())
	return nil
}

// loadPolicies reads the files that the one argument behind the flags names.
func loadPolicies(fs *flag.FlagSet, args []string, stderr io.Writer) (policy.Set, error) {
	fs.SetOutput(stderr)
	fs.Usage = func() {
		fmt.Fprintf(fs.Output(), "Usage of %s:\n%s\n", fs.Name(), policyUsage)
		fs.PrintDefaults()
	}
	if err := fs.Parse(args); err != nil {
		return policy.Set{}, err
	}
	if fs.NArg() != 1 {
		return policy.Set{}, errors.New(policyUsage)
	}
	return policy.Load(fs.Arg(0))
}

func explainPolicy(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	fs := flag.NewFlagSet("coordsvc policy explain", flag.ContinueOnError)
	name := fs.String("policy", "default", "the policy that the request names")
	tenant := fs.String("tenant", defaultTenant, "the tenant whose key sends the request")
	keysFile := fs.String("keys-file", "", "that of the service: says what each key is called in Redis, too")
	prefix := fs.String("redis-prefix", "", "that of the service, for the same")
	descriptors := map[string]string{}
	fs.Func("descriptor", "`name=value` of the request; once for each", func(text string) error {
		key, value, ok := strings.Cut(text, "=")
		if !ok {
			return errors.New("write name=value")
		}
		if _, twice := descriptors[key]; twice {
			return fmt.Errorf("%q is given twice", key)
		}
		descriptors[key] = value
		return nil
	})
	set, err := loadPolicies(fs, args, stderr)
	if err != nil {
		return err
	}
	e, err := set.Explain(ctx, *tenant, *name, descriptors)
	if err != nil {
		return err
	}
	named := func(policy.ExplainedLimit) string { return "" }
	if *keysFile != "" {
		secrets, err := loadKeys(*keysFile)
		if err != nil {
			return err
		}
		named = func(l policy.ExplainedLimit) string {
			return redislimit.NameOf(
				ratelimit.Bucket{Key: l.Bucket, Tag: l.Tag, Rule: ratelimit.Rule{Algorithm: l.Algorithm}},
				redislimit.Options{Prefix: *prefix, Secret: secrets.limits()},
			)
		}
	}
	writeExplanation(stdout, e, named)
	return nil
}

// writeExplanation adds what named says each limit's key is called in Redis, unless that is "".
func writeExplanation(w io.Writer, e policy.Explanation, named func(policy.ExplainedLimit) string) {
	stage := string(e.Policy.Stage)
	if e.Policy.Stage == ratelimit.Canary {
		stage = fmt.Sprintf("canary %d %%", e.Policy.Percent)
	}
	counts := "a refusal does not count"
	if e.Refuses {
		counts = "a refusal counts"
	}
	fmt.Fprintf(w, "policy %s: stage %s, %s; while the store fails: %s\n", e.Policy.Name, stage, counts, e.Policy.Posture)
	if e.Policy.Mode == ratelimit.Leased {
		fmt.Fprintf(w, "mode leased: %s\n", leasedText(e.Policy))
	}
	for _, l := range e.Limits {
		fmt.Fprintf(w, "limit %s: %s %s", l.Name, l.Algorithm, numbersText(l.Limit))
		if l.Override > 0 {
			fmt.Fprintf(w, ", by override %d for %s", l.Override, matchText(l.Match))
		}
		fmt.Fprintf(w, "\n  key %q\n", l.Bucket)
		if name := named(l); name != "" {
			fmt.Fprintf(w, "  in Redis %s\n", name)
		}
		if l.Of > 1 {
			meets := fmt.Sprintf("this request meets number %d", l.Shard+1)
			if l.Turns {
				meets = "requests like this one take turns, of which this is one"
			}
			fmt.Fprintf(w, "  one of %d shards, each with its part of the limit: %s\n", l.Of, meets)
		}
		if l.Apart {
			fmt.Fprintln(w, "  in another slot than the first limit: taken in a second step")
		}
	}
}

// leasedText says what the mode comes to.
func leasedText(p ratelimit.Policy) string {
	switch {
	case p.Stage != ratelimit.Enforce:
		return "in this stage decided as exact"
	case slices.ContainsFunc(p.Limits, ratelimit.Limit.TooSmallToLease):
		return "too few units for batches, or full again within 100 ms, so decided as exact"
	}
	return fmt.Sprintf("up to %d units more than the limits say may pass at any time", p.MaxOvershoot)
}

func numbersText(l ratelimit.Limit) string {
	switch l.Algorithm {
	case ratelimit.TokenBucket, ratelimit.GCRA:
		return fmt.Sprintf("%s, burst %d", rateText(l.Rate), l.Burst)
	case ratelimit.LeakyBucket:
		return fmt.Sprintf("%s, queue %d", rateText(l.Rate), l.Queue)
	case ratelimit.Concurrency:
		return fmt.Sprintf("%d slots of %s", l.Slots, spanText(l.SlotTTL))
	case ratelimit.FixedWindow, ratelimit.SlidingWindowCounter, ratelimit.SlidingWindowLog:
	}
	return rateText(l.Rate)
}

func rateText(r ratelimit.Rate) string {
	return fmt.Sprintf("%d/%s", r.Count, strings.TrimPrefix(spanText(r.Per), "1"))
}

// spanText writes a time as a policy file has it.
func spanText(d time.Duration) string {
	for _, unit := range []struct {
		name string
		is   time.Duration
	}{{"d", 24 * time.Hour}, {"h", time.Hour}, {"m", time.Minute}, {"s", time.Second}} {
		if d%unit.is == 0 {
			return fmt.Sprintf("%d%s", d/unit.is, unit.name)
		}
	}
	return fmt.Sprintf("%dms", d/time.Millisecond)
}

func matchText(match map[string]string) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(match)) {
		parts = append(parts, fmt.Sprintf("%s: %s", name, match[name]))
	}
	return strings.Join(parts, ", ")
}

// startPolicies are those that hold until the files are read again.
func startPolicies(c config) ([]ratelimit.Policy, error) {
	if c.policyPath == "" {
		return []ratelimit.Policy{ratelimit.DefaultPolicy()}, nil
	}
	set, err := policy.Load(c.policyPath)
	if err != nil {
		return nil, fmt.Errorf("COORD_POLICY_PATH=%s: nothing is served with wrong policies:\n%w", c.policyPath, err)
	}
	return set.Policies, nil
}

// watchPolicies reloads the policy files when they change and on SIGHUP, until ctx
// ends. Without files it does nothing, and SIGHUP ends the process as ever.
func watchPolicies(ctx context.Context, c config, limits *ratelimit.Limiter, metrics *telemetry.Metrics, log *slog.Logger) {
	if c.policyPath == "" {
		return
	}
	ask := make(chan os.Signal, 1)
	signal.Notify(ask, syscall.SIGHUP)
	defer signal.Stop(ask)
	policy.NewReloader(c.policyPath, limits.Replace).Watch(ctx, ask, func(err error) {
		metrics.PolicyReloaded(err == nil)
		if err != nil {
			log.Error("policy files refused: what was in force stays in force", "version", limits.Version(), "error", err)
			return
		}
		log.Info("policies in force", "version", limits.Version())
	})
}
