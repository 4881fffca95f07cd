package auth_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"regexp"
	"strings"
	"testing"
	"text/template"

	"github.com/coordsvc/coordsvc/internal/auth"
)

func TestNewSecret(t *testing.T) {
	shape := regexp.MustCompile(`^csk_[0-9A-Za-z]{43}$`)
	seen := map[string]bool{}
	for range 2000 {
		text := auth.NewSecret().Reveal()
		if !shape.MatchString(text) || seen[text] {
			t.Fatalf("made a text of %d bytes, seen before: %v", len(text), seen[text])
		}
		seen[text] = true
	}
	if (auth.Secret{}).Reveal() != "" {
		t.Error("the zero secret has a text")
	}
}

func TestSecretIsRedacted(t *testing.T) {
	secret := auth.NewSecret()
	hidden := struct{ s auth.Secret }{secret} // fmt calls no method of an unexported field
	shown := struct {
		S auth.Secret
		P *auth.Secret
		M map[string]auth.Secret
	}{secret, &secret, map[string]auth.Secret{"k": secret}}
	var prints []string
	for _, verb := range strings.Split("v +v #v s q x X d t b o c e p T U w 5.2v -40s", " ") {
		for _, v := range []any{secret, &secret, hidden, &hidden, shown, []auth.Secret{secret}, map[auth.Scope]any{"k": hidden}} {
			prints = append(prints, fmt.Sprintf("%"+verb, v))
		}
	}
	prints = append(prints, fmt.Sprint(secret), fmt.Sprintln(hidden), fmt.Errorf("e: %v", secret).Error(), secret.String())
	prints = append(prints, encode(t, secret), encode(t, shown), logged(secret, hidden, shown))
	var page bytes.Buffer
	if err := template.Must(template.New("").Parse("{{.}} {{printf \"%s\" .}}")).Execute(&page, secret); err != nil {
		t.Fatal(err)
	}
	prints = append(prints, page.String())

	text := secret.Reveal()
	for _, p := range prints {
		if strings.Contains(p, text[4:]) || strings.Contains(p, fmt.Sprintf("%x", text[4:])) || strings.Contains(p, fmt.Sprintf("%X", text[4:])) {
			t.Errorf("shows the text: %.60s", p)
		}
	}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x"} {
		if got := fmt.Sprintf(verb, secret); got != "[redacted]" {
			t.Errorf("%s prints %q", verb, got)
		}
	}
	if got := encode(t, secret); got != `"[redacted]"` {
		t.Errorf("json prints %s", got)
	}
}

func encode(t *testing.T, v any) string {
	t.Helper()
	raw, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

func logged(values ...any) string {
	var b bytes.Buffer
	for _, h := range []slog.Handler{slog.NewTextHandler(&b, nil), slog.NewJSONHandler(&b, nil)} {
		log := slog.New(h)
		for _, v := range values {
			log.Info("m", "v", v, slog.Group("g", "v", v))
		}
	}
	return b.String()
}
