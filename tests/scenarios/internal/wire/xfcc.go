package wire

import "strings"

// XFCC is an element of an x-forwarded-client-cert header.
type XFCC struct{ By, URI string }

// ParseXFCC reads the elements in order; the nearest proxy's is the last.
func ParseXFCC(header string) []XFCC {
	var all []XFCC
	for _, element := range split(header, ',') {
		var x XFCC
		for _, part := range split(element, ';') {
			key, value, ok := strings.Cut(strings.TrimSpace(part), "=")
			if !ok {
				continue
			}
			value = strings.ReplaceAll(strings.Trim(value, `"`), `\"`, `"`)
			switch strings.ToLower(key) {
			case "by":
				x.By = value
			case "uri":
				if x.URI == "" {
					x.URI = value
				}
			}
		}
		all = append(all, x)
	}
	return all
}

// split divides at a separator outside of double quotes.
func split(text string, at byte) []string {
	var parts []string
	quoted := false
	start := 0
	for i := 0; i < len(text); i++ {
		switch {
		case text[i] == '\\':
			i++
		case text[i] == '"':
			quoted = !quoted
		case text[i] == at && !quoted:
			parts = append(parts, text[start:i])
			start = i + 1
		}
	}
	if start < len(text) {
		parts = append(parts, text[start:])
	}
	return parts
}
