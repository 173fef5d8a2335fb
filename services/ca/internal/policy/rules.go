package policy

import (
	"errors"
	"fmt"
	"strings"
)

// parseRules reads the repeatable flags whose values are namespace/service-account=item,item. form is that form, for
// errors about a rule as a whole; parse reads one item. The result has the items in their order; errors name the rule.
func parseRules[T any](rules []string, form string, parse func(item string) (T, error)) (map[Workload][]T, error) {
	parsed := map[Workload][]T{}
	var errs []error
	for _, rule := range rules {
		who, list, ok := strings.Cut(rule, "=")
		if !ok || list == "" {
			errs = append(errs, fmt.Errorf("%q is not %s", rule, form))
			continue
		}
		w, err := ParseWorkload(who)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		for text := range strings.SplitSeq(list, ",") {
			item, err := parse(text)
			if err != nil {
				errs = append(errs, fmt.Errorf("%q: %w", rule, err))
				continue
			}
			parsed[w] = append(parsed[w], item)
		}
	}
	return parsed, errors.Join(errs...)
}
