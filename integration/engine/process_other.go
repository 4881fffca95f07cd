//go:build !linux

package engine

import (
	"context"
	"fmt"
)

// A process cannot be tied to its test binary's life on this system.
type process struct{}

func startProcess(string, func(int) []string, func(context.Context, string) error) (*process, error) {
	return nil, fmt.Errorf("%w: local engines are started on Linux only; name one by its address", errNone)
}

func startPostgres() (postgres, error) {
	return postgres{}, fmt.Errorf("%w: local engines are started on Linux only; name one by its address", errNone)
}

func freePort() (int, error) { return 0, errNone }

func (*process) addr() string  { return "" }
func (*process) start() error  { return errNone }
func (*process) kill()         {}
func (*process) pause() error  { return errNone }
func (*process) resume() error { return errNone }
