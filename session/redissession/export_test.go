package redissession

import (
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
)

// Mutate puts another text in place of the one in a script of this cache alone: verify, fill or bump.
func (c *Cache) Mutate(t testing.TB, name, old, next string) {
	t.Helper()
	text, at := map[string]string{"verify": verifyText, "fill": fillText, "bump": bumpText}[name], map[string]**redis.Script{
		"verify": &c.scripts.verify, "fill": &c.scripts.fill, "bump": &c.scripts.bump,
	}[name]
	if strings.Count(text, old) != 1 {
		t.Fatalf("%s has %q %d times", name, old, strings.Count(text, old))
	}
	*at = redis.NewScript(strings.Replace(text, old, next, 1))
}
