package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/coordsvc/coordsvc/internal/doctor"
	"github.com/coordsvc/coordsvc/internal/dynamo"
	"github.com/coordsvc/coordsvc/internal/schema"
	"github.com/coordsvc/coordsvc/keytype"
	"github.com/coordsvc/coordsvc/ratelimit/policy"
)

// diagnose runs coordsvc doctor: with the settings of serve it looks for what is set
// up wrong, and fails where there is a fault.
func diagnose(ctx context.Context, args []string, getenv func(string) string, stdout, stderr io.Writer) error {
	fs := flag.NewFlagSet("coordsvc doctor", flag.ContinueOnError)
	output := "text"
	fs.Func("o", "how to write the findings: text, json", func(v string) error {
		if v != "text" && v != "json" {
			return errors.New("write text or json")
		}
		output = v
		return nil
	})
	c, err := loadConfig(fs, args, getenv, stderr, needsKeysFile, takesFlagsOnly(fs), rightTraces(getenv))
	if err != nil {
		return err
	}
	redis.SetLogger(redisLog{slog.New(slog.DiscardHandler)}) // what it says is a finding
	findings, err := examine(ctx, c)
	if err != nil {
		return err
	}
	report := doctor.NewReport(findings)
	if output == "json" {
		enc := json.NewEncoder(stdout)
		enc.SetIndent("", "  ")
		if err := enc.Encode(report); err != nil {
			return err
		}
	} else {
		report.Write(stdout)
	}
	if report.Faults > 0 {
		return fmt.Errorf("%d faults", report.Faults)
	}
	return nil
}

func examine(ctx context.Context, c config) ([]doctor.Finding, error) {
	all := append(doctor.KeyTypes(keytype.All()), secretFiles(c)...)
	all = append(all, policyFindings(c)...)
	if c.redisURL == "" {
		if !c.embedded() {
			all = append(all, doctor.Finding{Check: "redis", Subject: "COORD_REDIS_URL", Status: doctor.Warning, Detail: "is unset", Fix: "name a Redis: limits are counted per process, locks are refused, and every verify reads DynamoDB"})
		}
	} else {
		c.redisBudget = time.Second // nobody waits for an answer but the operator
		client, err := redisClient(c)
		if err != nil {
			return nil, err
		}
		all = append(all, doctor.Redis(ctx, client, c.now)...)
		if err := client.Close(); err != nil {
			return nil, err
		}
	}
	if c.embedded() {
		return append(all, dataFolder(c)), nil
	}
	clock := dynamo.NewClock(c.now)
	client, err := dynamoClient(ctx, c, clock.Listen)
	if err != nil {
		return nil, err
	}
	tables := schema.Tables(c.tablePrefix)
	all = append(all, doctor.Tables(ctx, client, tables...)...)
	all = append(all, doctor.Permissions(ctx, client, c.tablePrefix, tables...)...)
	all = append(all, doctor.DynamoClock(settled(ctx, c, clock, func() { doctor.Tables(ctx, client, tables[0]) }), c.leaseGuard/2))
	return all, nil
}

// settled asks until the clock is known well enough, or for as long as serve does:
// an answer tells the time to a second, and many together more.
func settled(ctx context.Context, c config, clock *dynamo.Clock, ask func()) *dynamo.Clock {
	for end := time.Now().Add(clockWait); !clock.Within(c.leaseGuard/2) && time.Now().Before(end) && ctx.Err() == nil; time.Sleep(clockFirst) {
		ask()
	}
	return clock
}

func policyFindings(c config) []doctor.Finding {
	policies, err := startPolicies(c)
	if err != nil {
		detail := err.Error()
		if wrong, ok := errors.AsType[*policy.MistakesError](err); ok {
			detail = wrong.Error()
		}
		return []doctor.Finding{{Check: "policies", Subject: c.policyPath, Status: doctor.Fault, Detail: detail, Fix: "mend the files: coordsvc policy lint"}}
	}
	if c.policyPath == "" {
		return []doctor.Finding{{Check: "policies", Subject: "COORD_POLICY_PATH", Status: doctor.Warning, Detail: "is unset: there is one policy, default", Fix: "write your own"}}
	}
	return doctor.Policies(policies)
}

// secretFiles checks that the files with secrets can be read, and by their owner alone.
func secretFiles(c config) (all []doctor.Finding) {
	if path := keysPath(c); !c.embedded() || exists(path) {
		_, err := loadKeys(path)
		all = append(all, secretFile("keys file", path, err))
	}
	if c.bootstrapKeyFile != "" {
		_, err := readKeyLine(c.bootstrapKeyFile)
		all = append(all, secretFile("bootstrap key file", c.bootstrapKeyFile, err))
	}
	return all
}

func secretFile(check, path string, err error) doctor.Finding {
	if err != nil {
		return doctor.Finding{Check: check, Subject: path, Status: doctor.Fault, Detail: err.Error(), Fix: "put the file there, as its documentation says"}
	}
	info, err := os.Stat(path) //nolint:gosec // the operator names the file
	if err == nil && info.Mode().Perm()&0o004 != 0 {
		return doctor.Finding{Check: check, Subject: path, Status: doctor.Fault, Detail: fmt.Sprintf("everybody may read it: %v", info.Mode().Perm()), Fix: "chmod 600 " + path}
	}
	return doctor.Finding{Check: check, Subject: path, Status: doctor.OK, Detail: "can be read"}
}

// dataFolder checks that the embedded store's folder can be written to by its owner alone.
func dataFolder(c config) doctor.Finding {
	f := doctor.Finding{Check: "data folder", Subject: c.dataDir, Status: doctor.OK, Detail: "belongs to its owner alone"}
	info, err := os.Stat(c.dataDir)
	switch {
	case err != nil:
		f.Detail = "is made at the first start"
	case !info.IsDir():
		f.Status, f.Detail, f.Fix = doctor.Fault, "is no folder", "name another in COORD_DATA_DIR"
	case info.Mode().Perm()&0o077 != 0:
		f.Status, f.Detail, f.Fix = doctor.Fault, fmt.Sprintf("others may look into it: %v", info.Mode().Perm()), "chmod 700 "+shellQuote(c.dataDir)
	}
	return f
}
