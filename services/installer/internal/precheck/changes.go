package precheck

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"fairlead.dev/services/installer/internal/install/profile"
	"fairlead.dev/services/installer/internal/install/tree"
)

// Change is a default that was another one in a former version.
type Change struct {
	// Value is the path of the value, and Old what keeps the former behaviour.
	Value, Old string
}

var (
	minor         = regexp.MustCompile(`^v?1\.(\d{1,3})(\.\d+)?$`)
	compatibility = regexp.MustCompile(`^profile-compatibility-version-1\.(\d{1,3})\.yaml$`)
)

// Changes lists the defaults of a package's charts that changed since a version, "1.28": the charts have a file for
// each version that says what was. old is true if the version is older than what they know.
func Changes(pkg *profile.Package, since string) (list []Change, old bool, err error) {
	m := minor.FindStringSubmatch(since)
	if m == nil {
		return nil, false, fmt.Errorf("%q is no version; write for example 1.28", since)
	}
	from, err := strconv.Atoi(m[1])
	if err != nil {
		return nil, false, err
	}
	oldest := -1
	for i := range pkg.Components {
		if pkg.Components[i].Alias != "" || pkg.Components[i].Chart == "" {
			continue // a name for other components, with no chart of its own
		}
		c, err := pkg.Chart(pkg.Components[i].Chart)
		if err != nil {
			return nil, false, err
		}
		texts := map[int][]byte{}
		for _, f := range c.Files {
			if m := compatibility.FindStringSubmatch(path.Base(f.Name)); m != nil {
				n, err := strconv.Atoi(m[1])
				if err != nil {
					return nil, false, err
				}
				if texts[n] = f.Data; oldest < 0 || n < oldest {
					oldest = n
				}
			}
		}
		at := -1
		for n := range texts { // the file of the version, or of the oldest one after it
			if n >= from && (at < 0 || n < at) {
				at = n
			}
		}
		if at < 0 {
			continue
		}
		values, err := tree.ParseMap(texts[at])
		if err != nil {
			return nil, false, fmt.Errorf("compatibility version 1.%d of component %s: %w", at, pkg.Components[i].Name, err)
		}
		for _, change := range tree.Changes(tree.Map{}, values) {
			list = flatten(list, change.Path, change.Second)
		}
	}
	slices.SortFunc(list, func(a, b Change) int { return strings.Compare(a.Value, b.Value) })
	return slices.Compact(list), oldest >= 0 && from < oldest, nil
}

func flatten(list []Change, at string, v any) []Change {
	m, ok := v.(tree.Map)
	if !ok {
		text, err := tree.Text(v)
		if err != nil {
			return list
		}
		return append(list, Change{at, strings.TrimSpace(string(text))})
	}
	for _, k := range tree.Keys(m) {
		list = flatten(list, at+"."+tree.Path{{Key: k}}.String(), m[k])
	}
	return list
}

// changes says what changed since the former version.
func (c *checker) changes() {
	for _, change := range c.Changes {
		c.say(Warning, "DefaultChanged", "",
			fmt.Sprintf("check what relies on it; --set values.%s=%s keeps it, and --set compatibilityVersion=%s all of them", change.Value,
				change.Old, c.Since),
			"the default of values.%s was %s in %s", change.Value, change.Old, c.Since)
	}
}
