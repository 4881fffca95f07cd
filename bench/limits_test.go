package main

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// TestMain lets the test's program be the floor, as the benchmark's is.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == limitFloorArg {
		if err := run(context.Background(), os.Args[1:]); err != nil {
			panic(err)
		}
		return
	}
	os.Exit(m.Run())
}

// The benchmark still runs, and its answers are those that it demands. It asserts no figure.
func TestLimitsSmoke(t *testing.T) {
	if _, err := exec.LookPath("redis-server"); err != nil {
		t.Skip("needs redis-server")
	}
	built, err := openLab(t.Context(), "") // without the profile, which takes minutes
	if err != nil {
		t.Fatal(err)
	}
	defer built.close()
	o := options{rounds: 1, requests: 200, connections: 8, only: ": (floor|echo|coordsvc)", peers: "../.tools/bin", program: built.coordsvc}
	for _, peer := range []string{"service_cmd", "gubernator"} {
		if _, err := exec.LookPath(o.peers + "/" + peer); err != nil {
			t.Log("without peers: make bench-peers installs them")
			break
		}
		if peer == "gubernator" {
			o.only = ": "
		}
	}
	var out strings.Builder
	if err := limits(t.Context(), o, &out); err != nil {
		t.Fatal(err)
	}
	cases, err := chosen(o.only)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range cases {
		if n := strings.Count(out.String(), "\n"+c.String()+" "); n != 2 {
			t.Errorf("%s stands %d times in the tables, which are\n%s", c, n, &out)
			break
		}
	}
	if !strings.Contains(out.String(), "HTTP: server CPU × floor") {
		t.Errorf("there are no targets in\n%s", &out)
	}
}
