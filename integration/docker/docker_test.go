package docker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/moby/moby/client"
	"github.com/testcontainers/testcontainers-go"
	"github.com/testcontainers/testcontainers-go/log"
)

// allowed bounds what waits for a container.
const allowed = 2 * time.Minute

func TestMain(m *testing.M) {
	log.SetDefault(log.NewNoopLogger()) // a test that fails says what its containers wrote
	// Its image would have to be pulled, and each test ends what it began.
	_ = os.Setenv("TESTCONTAINERS_RYUK_DISABLED", "true")
	// Ports are published on the loopback address alone.
	_ = os.Setenv("TESTCONTAINERS_HOST_OVERRIDE", "127.0.0.1")
	os.Exit(m.Run())
}

// demand ends the test where the images cannot be had.
func demand(t *testing.T, images ...string) {
	t.Helper()
	wish := os.Getenv("COORD_TEST_DOCKER")
	if wish == "skip" {
		t.Skip("COORD_TEST_DOCKER=skip")
	}
	err := look(t.Context(), images)
	switch {
	case err == nil:
	case wish == "require":
		t.Fatal(err)
	default:
		t.Skip(err)
	}
}

// look says why the images cannot be had, nil where they can.
func look(ctx context.Context, images []string) error {
	ctx, cancel := context.WithTimeout(ctx, allowed)
	defer cancel()
	provider, err := testcontainers.NewDockerProvider()
	if err != nil {
		return fmt.Errorf("no Docker: %w", err)
	}
	defer provider.Close()
	if err := provider.Health(ctx); err != nil {
		return fmt.Errorf("no Docker daemon: %w", err)
	}
	for _, image := range images {
		_, missing := provider.Client().ImageInspect(ctx, image)
		switch {
		case missing == nil:
		case os.Getenv("COORD_TEST_PULL") == "1":
			if err := provider.PullImage(ctx, image); err != nil {
				return fmt.Errorf("pull %s: %w", image, err)
			}
		default:
			return fmt.Errorf("%s: %w; `make test-docker` builds it, or COORD_TEST_PULL=1 pulls it", image, missing)
		}
	}
	return nil
}

// ended waits until the container has ended, and returns its exit code and what it wrote.
func ended(t *testing.T, c testcontainers.Container) (code int, wrote string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), allowed)
	defer cancel()
	for {
		state, err := c.State(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if !state.Running && state.Status != "created" {
			return state.ExitCode, logs(t, c)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// logs is what the container has written, both of its streams.
func logs(t *testing.T, c testcontainers.Container) string {
	t.Helper()
	r, err := c.Logs(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(r)
	if err := errors.Join(err, r.Close()); err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// healthy waits for the health that Docker sees.
func healthy(t *testing.T, c testcontainers.Container, want string) {
	t.Helper()
	deadline := time.Now().Add(allowed)
	for {
		state, err := c.State(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if state.Health != nil && string(state.Health.Status) == want {
			return
		}
		if time.Now().After(deadline) || !state.Running {
			t.Fatalf("it is %+v, want %s\n%s", state, want, logs(t, c))
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// inside runs a command in the container, and returns its exit code and what it wrote.
func inside(t *testing.T, c testcontainers.Container, command ...string) (code int, wrote string) {
	t.Helper()
	code, r, err := c.Exec(t.Context(), command)
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return code, strings.TrimSpace(string(text))
}

// daemon is a client of the Docker daemon itself.
func daemon(t *testing.T) client.APIClient {
	t.Helper()
	provider, err := testcontainers.NewDockerProvider()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = provider.Close() })
	return provider.Client()
}
