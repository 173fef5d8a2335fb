package harness

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"

	"fairlead.dev/tests/internal/netns"
	"fairlead.dev/tests/internal/wait"
)

// deprecatedStat counts the deprecated fields that a proxy was configured with, deprecatedOption is how its log names
// one.
const deprecatedStat = `^runtime\.deprecated_feature_use$`

var deprecatedOption = regexp.MustCompile(`deprecated (?:option|value) '?([A-Za-z0-9_.]+)`)

// deprecations is how far a proxy was looked through for deprecated fields.
type deprecations struct {
	process *netns.Process
	counted int64
	// read is how much of its log was.
	read int64
}

// deprecated lists what proxies have said of deprecated fields since the last look, but for fields that an EnvoyFilter
// of the scenario names itself.
func (h *Harness) deprecated(ctx context.Context) []string {
	asked := h.store.PatchedWith()
	var mu sync.Mutex
	var out []string
	_ = wait.Each(h.proxies(), func(l *workload) error {
		told, err := l.deprecated(ctx, asked)
		if err != nil {
			told = append(told, err.Error())
		}
		mu.Lock()
		defer mu.Unlock()
		out = append(out, told...)
		return nil // it is told above
	})
	slices.Sort(out)
	return out
}

func (l *workload) deprecated(ctx context.Context, asked string) ([]string, error) {
	stats, err := l.stats(ctx, "Counters", deprecatedStat)
	if err != nil {
		return nil, err
	}
	if l.deprecations.process != l.agent {
		l.deprecations.process, l.deprecations.counted = l.agent, 0
	}
	var counted int64
	for _, n := range stats {
		counted += n
	}
	uses := counted - l.deprecations.counted
	l.deprecations.counted = counted
	raw, err := os.ReadFile(l.log())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	fresh := raw[min(l.deprecations.read, int64(len(raw))):]
	l.deprecations.read = int64(len(raw))
	own, by, wanted := map[string]int{}, 0, false
	for _, m := range deprecatedOption.FindAllSubmatch(fresh, -1) {
		if option := strings.TrimSuffix(string(m[1]), "."); names(asked, option) {
			wanted = true
		} else {
			own[option]++
			by++
		}
	}
	var out []string
	for option, n := range own {
		out = append(out, fmt.Sprintf("the proxy of %s was sent a deprecated field %d times: %s", l.spec.Name, n, option))
	}
	if by == 0 && uses > 0 && !wanted {
		out = append(out, fmt.Sprintf("the proxy of %s counts %d uses of deprecated fields, and its log does not name them", l.spec.Name, uses))
	}
	return out, nil
}

// names reports whether EnvoyFilters name a field or a value themselves: by its name in the proto file, or as JSON
// writes it.
func names(filters, option string) bool {
	field := option[strings.LastIndexByte(option, '.')+1:]
	words := strings.Split(field, "_")
	for i, word := range words[1:] {
		if word != "" {
			words[i+1] = strings.ToUpper(word[:1]) + word[1:]
		}
	}
	return regexp.MustCompile(`\b(?:` + regexp.QuoteMeta(field) + `|` + regexp.QuoteMeta(strings.Join(words, "")) + `)\b`).MatchString(filters)
}
