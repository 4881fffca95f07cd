package ratelimithttp

import "strings"

// unreadable is a node that names nobody.
var unreadable = []string{"unknown"}

// forwardedNodes are the for= of a line of Forwarded (RFC 7239, section 4), one for
// each element, "" where it has none. A quoted string is taken as a whole: a proxy
// puts what a client chose, such as the host, into one, and a comma or a for= in it
// is no element. A line with any mistake names nobody, for then a client may have
// opened a string that the proxy's own words close.
func forwardedNodes(line string) []string {
	nodes, rest := []string{""}, strings.Trim(line, " \t")
	for rest != "" {
		name, after, ok := cutToken(rest)
		if !ok || !strings.HasPrefix(after, "=") {
			return unreadable
		}
		value, after, ok := cutValue(after[1:])
		if !ok {
			return unreadable
		}
		if last := &nodes[len(nodes)-1]; strings.EqualFold(name, "for") {
			if *last != "" { // twice in one element
				return unreadable
			}
			*last = value
		}
		after = strings.TrimLeft(after, " \t")
		switch {
		case after == "":
			return nodes
		case after[0] == ',':
			nodes = append(nodes, "")
		case after[0] != ';':
			return unreadable
		}
		rest = strings.TrimLeft(after[1:], " \t")
		if rest == "" {
			return unreadable
		}
	}
	return unreadable
}

func cutToken(s string) (token, rest string, ok bool) {
	rest = strings.TrimLeft(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789!#$%&'*+-.^_`|~")
	return s[:len(s)-len(rest)], rest, len(rest) < len(s)
}

// cutValue takes a token or a quoted string. Colons and brackets, which belong in
// quotes, are taken without, as some proxies write them.
func cutValue(s string) (value, rest string, ok bool) {
	if !strings.HasPrefix(s, `"`) {
		end := strings.IndexAny(s, `,; "=\`)
		if end < 0 {
			end = len(s)
		}
		return s[:end], s[end:], end > 0
	}
	var b strings.Builder
	for i := 1; i < len(s); i++ {
		switch {
		case s[i] == '"':
			return b.String(), s[i+1:], true
		case s[i] == '\\' && i+1 < len(s):
			i++
		}
		b.WriteByte(s[i])
	}
	return "", "", false
}
