package config

import (
	"fmt"
	"strconv"
	"strings"
)

// parsePodInfo parses a file of Kubernetes' downward API: one key="value" per line, the value quoted as by
// strconv.Quote.
func parsePodInfo(data string) (map[string]string, error) {
	out := map[string]string{}
	for i, line := range strings.Split(data, "\n") {
		line = strings.TrimSpace(line)
		if line == "" {
			continue
		}
		key, quoted, ok := strings.Cut(line, "=")
		if !ok || key == "" {
			return nil, fmt.Errorf("line %d: want key=\"value\"", i+1)
		}
		value, err := strconv.Unquote(quoted)
		if err != nil {
			return nil, fmt.Errorf("line %d: value of %q is not a quoted string", i+1, key)
		}
		out[key] = value
	}
	return out, nil
}
