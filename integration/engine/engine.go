// Package engine decides which real stores a test binary runs on: it finds them,
// starts them where it must, refuses one that grants the same thing twice, and
// reports what ran on what.
//
// An engine is looked for at an address (COORD_TEST_DYNAMODB, COORD_TEST_REDIS),
// else as a local binary, which is started once per test binary and dies with it.
// Where there is none the test is skipped, or fails if COORD_TEST_REQUIRE, a
// comma-separated list of engine names, holds its name.
package engine

import (
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"testing"
)

// errNone is wrapped by every reason why an engine could not be found, as
// opposed to one that was found and misbehaves.
var errNone = errors.New("engine: none found")

// FreshPrefix returns a prefix for table and key names, [a-z0-9_] and 13 bytes
// long, that no other caller has, in this process or another.
func FreshPrefix() string {
	return "t" + strings.ToLower(rand.Text()[:11]) + "_"
}

// demand ends the test where its engine could not be had. Only a missing engine
// that nobody requires is a skip.
func demand(t testing.TB, name string, err error) {
	t.Helper()
	switch {
	case err == nil:
	case errors.Is(err, errNone) && !required(name):
		t.Skipf("%s: %v; `make engines` installs it", name, err)
	default:
		t.Fatalf("%s: %v", name, err)
	}
}

func required(name string) bool {
	list, _ := os.LookupEnv("COORD_TEST_REQUIRE")
	return slices.Contains(strings.Split(list, ","), name)
}

// findBinary returns the path of a program: from PATH, the repository's
// .tools/bin, or the folder that cargo installs into.
func findBinary(name string) (string, error) {
	if path, err := exec.LookPath(name); err == nil {
		return path, nil
	}
	for _, dir := range toolDirs() {
		if path, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("%w: no %s on PATH, in .tools/bin or ~/.cargo/bin", errNone, name)
}

func toolDirs() []string {
	var dirs []string
	if root := moduleRoot(); root != "" {
		dirs = append(dirs, filepath.Join(root, ".tools", "bin"))
	}
	if home, ok := os.LookupEnv("CARGO_HOME"); ok {
		dirs = append(dirs, filepath.Join(home, "bin"))
	}
	if home, err := os.UserHomeDir(); err == nil {
		dirs = append(dirs, filepath.Join(home, ".cargo", "bin"))
	}
	return dirs
}

// moduleRoot is the nearest folder above the working folder that holds go.mod:
// `go test` runs a test binary in its package's folder.
func moduleRoot() string {
	dir, err := os.Getwd()
	for err == nil && dir != filepath.Dir(dir) {
		if _, statErr := os.Stat(filepath.Join(dir, "go.mod")); statErr == nil {
			return dir
		}
		dir = filepath.Dir(dir)
	}
	return ""
}

// reported holds the lines that this process has written.
var reported sync.Map

// report appends the line "<package>\t<engine>\t<what it ran on>" to the file
// COORD_TEST_REPORT, where that is set, once per process.
func report(name, source string) {
	path, ok := os.LookupEnv("COORD_TEST_REPORT")
	if !ok || path == "" {
		return
	}
	line := strings.Join([]string{testedPackage(), name, source}, "\t") + "\n"
	if _, again := reported.LoadOrStore(line, true); again {
		return
	}
	// One short write in append mode: lines of other test binaries do not mix in.
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		fmt.Fprintf(os.Stderr, "engine: report: %v\n", err)
		return
	}
	_, err = f.WriteString(line)
	if err = errors.Join(err, f.Close()); err != nil {
		fmt.Fprintf(os.Stderr, "engine: report: %v\n", err)
	}
}

// testedPackage is the import path of the package whose test binary this is.
func testedPackage() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Path != "" {
		return strings.TrimSuffix(info.Path, ".test")
	}
	return filepath.Base(os.Args[0])
}

// Found reports whether there is an engine of that name, which is dynamodb or redis.
func Found(name string) bool {
	var err error
	switch name {
	case "dynamodb":
		_, err = sharedDynamo()
	case "redis":
		_, err = sharedRedis()
	default:
		return false
	}
	return err == nil
}
