package authzcover

import (
	"slices"
	"strings"

	"fairlead.dev/pkg/authz"
)

// index finds rules that may match a request: by the identities or the paths for which they are alone, as most rules of
// large sets are, and others always.
type index struct {
	byKey  map[string][]*authz.Rule
	others []*authz.Rule
}

func newIndex(list []*authz.Rule) *index {
	x := &index{byKey: map[string][]*authz.Rule{}}
	for _, r := range list {
		keys := indexKeys(r)
		if len(keys) == 0 {
			x.others = append(x.others, r)
		}
		for _, k := range keys {
			x.byKey[k] = append(x.byKey[k], r)
		}
	}
	return x
}

// rules are those that may match a request, sorted.
func (x *index) rules(req authz.Request) []*authz.Rule {
	path, _, _ := strings.Cut(req.Path, "?")
	path, _, _ = strings.Cut(path, "#")
	out := slices.Concat(x.byKey["principal "+req.Principal], x.byKey["path "+path], x.others)
	slices.SortFunc(out, Order)
	return out
}

// indexKeys are such that every request that a rule matches has one of them; none if there are no such keys.
func indexKeys(r *authz.Rule) []string {
	if r.HTTP != nil && r.TCP == nil {
		if keys := exactly("path ", authz.Path, r.HTTP.To); keys != nil {
			return keys
		}
	}
	var out []string
	for _, f := range []*authz.Form{r.HTTP, r.TCP} {
		if f == nil {
			continue
		}
		keys := exactly("principal ", authz.Principal, f.From)
		if keys == nil {
			return nil
		}
		out = append(out, keys...)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// exactly lists the values of a field, one of which every request has that meets a clause; nil if there are others.
func exactly(prefix string, field authz.Field, clauses []authz.Clause) (out []string) {
	exact := func(v authz.Value) bool { return v.String.Kind == authz.Exact && !v.String.IgnoreCase }
	for _, c := range clauses {
		i := slices.IndexFunc(c, func(m authz.Match) bool {
			return m.Field == field && !m.Not && !slices.ContainsFunc(m.Values, func(v authz.Value) bool { return !exact(v) })
		})
		if i < 0 {
			return nil
		}
		for _, v := range c[i].Values {
			out = append(out, prefix+v.String.Text)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}
