package integration

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// readRunbooks returns the pages by their name.
func readRunbooks(t *testing.T) map[string]string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(runbooksDir, "*.md"))
	if err != nil || len(files) < 8 {
		t.Fatalf("runbooks: %v, %v", files, err)
	}
	pages := map[string]string{}
	for _, path := range files {
		raw, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		pages[filepath.Base(path)] = string(raw)
	}
	return pages
}

// fenced returns the text of the blocks in a language.
func fenced(page, language string) (blocks []string) {
	for _, part := range strings.Split(page, "\n```"+language+"\n")[1:] {
		block, _, _ := strings.Cut(part, "\n```")
		blocks = append(blocks, block)
	}
	return blocks
}

// Every alert has a page that names it, and every page whose alert exists names what
// to ask, what to do and how to see that it worked.
func TestRunbooksBelongToTheAlerts(t *testing.T) {
	pages := readRunbooks(t)
	var alerts []string
	for _, r := range readRules(t) {
		if r.Alert == "" {
			continue
		}
		alerts = append(alerts, r.Alert)
		url, page := r.Annotations["runbook_url"], ""
		for name := range pages {
			if strings.HasSuffix(url, "/docs/runbooks/"+name) {
				page = pages[name]
			}
		}
		if !strings.Contains(page, "`"+r.Alert+"`") {
			t.Errorf("%s links %q, which does not name it", r.Alert, url)
		}
		if severity := r.Labels["severity"]; severity != "page" && severity != "ticket" {
			t.Errorf("%s has severity %q", r.Alert, severity)
		}
		if r.Annotations["summary"] == "" {
			t.Errorf("%s has no summary", r.Alert)
		}
	}
	for name, page := range pages {
		for _, found := range regexp.MustCompile("`(Coordsvc[A-Za-z]+)`").FindAllStringSubmatch(page, -1) {
			if !slices.Contains(alerts, found[1]) {
				t.Errorf("%s names the alert %s, which does not exist", name, found[1])
			}
		}
		if !strings.Contains(page, "`Coordsvc") {
			continue // of a store: how its types behave
		}
		if len(fenced(page, "promql")) == 0 || len(fenced(page, "sh")) == 0 || !strings.Contains(page, "**How to see that it worked.**") {
			t.Errorf("%s lacks a query, a command or how to see that it worked", name)
		}
		for _, link := range regexp.MustCompile(`\]\(([a-z-]+\.md)\)`).FindAllStringSubmatch(page, -1) {
			if pages[link[1]] == "" {
				t.Errorf("%s links %s, which does not exist", name, link[1])
			}
		}
	}
}

// What the pages tell people to type exists: the commands and their flags, and the
// routes that curl is sent to.
func TestRunbooksCommandsExist(t *testing.T) {
	t.Parallel()
	routes := contractRoutes(t)
	counted := map[string]int{}
	for name, page := range readRunbooks(t) {
		for _, block := range fenced(page, "sh") {
			for line := range strings.Lines(block) {
				words := strings.Fields(line)
				counted[words[0]]++
				switch words[0] {
				case "coordsvc":
					knownCommand(t, name, words[1:])
				case "curl":
					knownRoute(t, name, line, routes)
				case "redis-cli", "aws":
				default:
					t.Errorf("%s: what is %s?", name, words[0])
				}
			}
		}
	}
	if counted["coordsvc"] < 5 || counted["curl"] < 10 {
		t.Errorf("%v commands: not what the pages say", counted)
	}
}

// knownCommand asks the binary for help with the command, which names its flags.
func knownCommand(t *testing.T, page string, words []string) {
	t.Helper()
	sub := words[:1]
	if slices.Contains([]string{"tables", "keys", "policy"}, words[0]) {
		sub = words[:2]
	}
	help, _, err := output(t, nil, append(slices.Clone(sub), "--help")...)
	if !strings.Contains(help, "Usage of coordsvc "+strings.Join(sub, " ")+":") {
		t.Errorf("%s: coordsvc %s: %v", page, strings.Join(sub, " "), err)
	}
	for _, word := range words {
		if flag, ok := strings.CutPrefix(word, "--"); ok && !strings.Contains(help, "  -"+flag+" ") && !strings.Contains(help, "  -"+flag+"\n") {
			t.Errorf("%s: coordsvc %s has no flag %s", page, strings.Join(sub, " "), word)
		}
	}
}

// contractRoutes are "METHOD /path" as the contract has them.
func contractRoutes(t *testing.T) (routes []string) {
	t.Helper()
	raw, err := os.ReadFile("../api/openapi.yaml")
	if err != nil {
		t.Fatal(err)
	}
	path := ""
	for line := range strings.Lines(string(raw)) {
		if strings.HasPrefix(line, "  /") {
			path = strings.TrimSuffix(strings.TrimSpace(line), ":")
		}
		for _, method := range []string{"get", "post", "put", "delete"} {
			if strings.TrimRight(line, "\n") == "    "+method+":" && path != "" {
				routes = append(routes, strings.ToUpper(method)+" "+path)
			}
		}
	}
	if len(routes) < 30 {
		t.Fatalf("%d routes in the contract", len(routes))
	}
	return routes
}

var (
	curlURL    = regexp.MustCompile(`"\$(API|OPS)(/[^"]*)"`)
	curlMethod = regexp.MustCompile(` -X ([A-Z]+)`)
)

func knownRoute(t *testing.T, page, line string, routes []string) {
	t.Helper()
	url := curlURL.FindStringSubmatch(line)
	if url == nil {
		t.Errorf("%s: no address: %s", page, line)
		return
	}
	path, _, _ := strings.Cut(url[2], "?")
	if url[1] == "OPS" {
		if path != "/readyz" && path != "/healthz" && path != "/metrics" {
			t.Errorf("%s: no %s on the ops listener", page, path)
		}
		return
	}
	method := "GET"
	if m := curlMethod.FindStringSubmatch(line); m != nil {
		method = m[1]
	}
	exists := slices.ContainsFunc(routes, func(route string) bool {
		pattern := regexp.MustCompile(`\{[^}]+\}`).ReplaceAllString(route, "[^/]+")
		return regexp.MustCompile("^" + pattern + "$").MatchString(method + " " + path)
	})
	if !exists {
		t.Errorf("%s: the contract has no %s %s", page, method, path)
	}
}
