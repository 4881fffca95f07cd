package main

import (
	"context"
	"log/slog"
	"sync"

	"github.com/redis/go-redis/v9"
)

// A bar keeps this process from a store that has turned out to be another's while it
// runs: what it would read or write there is not its own. Its other stores are left to
// it, and it goes on looking. A nil bar is open.
type bar struct {
	store string

	mu  sync.Mutex
	why error // guarded by mu; nil while it is open
}

// passes marks the context of who looks whether the store is this process's again.
type passes struct{}

func passing(ctx context.Context) context.Context { return context.WithValue(ctx, passes{}, true) }

// set closes the bar for the reason, or opens it, nil.
func (b *bar) set(ctx context.Context, why error, log *slog.Logger) {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case why != nil && b.why == nil:
		log.ErrorContext(ctx, b.store+" is another's: it is not used until it is this deployment's again", "error", why)
	case why == nil && b.why != nil:
		log.InfoContext(ctx, b.store+" is this deployment's again, and used")
	}
	b.why = why
}

func (b *bar) reason() error {
	if b == nil {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.why
}

// check is what a request meets: nothing where the bar is open, or for who looks.
func (b *bar) check(ctx context.Context) error {
	if why := b.reason(); why != nil && ctx.Value(passes{}) == nil {
		return barredError{why}
	}
	return nil
}

// A barredError is that of a request that was not sent.
type barredError struct{ error }

func (e barredError) Unwrap() error { return e.error }

// NotSent tells those who repeat what was not sent, or fear that it was done.
func (barredError) NotSent() {}

// DialHook implements redis.Hook.
func (b *bar) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessHook implements redis.Hook.
func (b *bar) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if err := b.check(ctx); err != nil {
			cmd.SetErr(err)
			return err
		}
		return next(ctx, cmd)
	}
}

// ProcessPipelineHook implements redis.Hook.
func (b *bar) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		err := b.check(ctx)
		if err == nil {
			return next(ctx, cmds)
		}
		for _, cmd := range cmds {
			cmd.SetErr(err)
		}
		return err
	}
}
