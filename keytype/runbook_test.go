package keytype

import (
	"os"
	"path/filepath"
	"testing"
)

func TestEveryTypesRunbookExists(t *testing.T) {
	for _, kind := range All() {
		if _, err := os.Stat(filepath.Join("..", kind.Runbook())); err != nil {
			t.Errorf("%s: %v", kind.Name, err)
		}
	}
}
