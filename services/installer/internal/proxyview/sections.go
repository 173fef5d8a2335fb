package proxyview

import (
	"fmt"
	"slices"
	"strings"

	"fairlead.dev/pkg/lists"
	"fairlead.dev/pkg/nearest"
	"fairlead.dev/services/installer/internal/envoyadmin"
)

// Sections of `fairlead proxy-config` that an Envoy's dump does not have.
const (
	// NameTables are the name tables (NDS) of agents' DNS proxies; only xds-servers show them.
	NameTables envoyadmin.Section = "NameTables"
	// All are those of tableSections.
	All envoyadmin.Section = "All"
	// LogLevels are those of a running Envoy's loggers.
	LogLevels envoyadmin.Section = "Log"
)

// Named is a section with its names: our plural, and istioctl's names and abbreviations as aliases.
type Named struct {
	Section envoyadmin.Section
	Name    string
	aliases []string
	About   string
}

// Sections are all that can be shown.
var Sections = []Named{
	{envoyadmin.Clusters, "clusters", []string{"cluster", "c", "cds"}, "clusters: destinations, subsets"},
	{envoyadmin.Listeners, "listeners", []string{"listener", "l", "lds"}, "listeners, with their filter chains"},
	{envoyadmin.Routes, "routes", []string{"route", "r", "rds"}, "routes, with destinations and their shares"},
	{envoyadmin.VirtualHosts, "virtualhosts", []string{"virtualhost", "vhosts", "vhost", "vh"},
		"virtual hosts, with the objects they are made from"},
	{envoyadmin.Endpoints, "endpoints", []string{"endpoint", "ep", "eds"}, "endpoints, with their health"},
	{envoyadmin.Secrets, "secrets", []string{"secret", "s", "sds"}, "certificates, with their dates; never a private key"},
	{envoyadmin.Extensions, "ecds", []string{"ec", "extensions", "extension"}, "extension configs"},
	{envoyadmin.Bootstrap, "bootstrap", []string{"b", "bootstraps"}, "what the proxy was started with"},
	{NameTables, "nametables", []string{"nametable", "nds"}, "what the agent answers DNS queries from; with --served"},
	{All, "all", []string{"a"}, "all of them"},
	{LogLevels, "log", []string{"o", "logs"}, "log levels; --level and --reset change them"},
}

// SectionNames lists the sections' full names.
func SectionNames() []string {
	return lists.Map(Sections, func(s Named) string { return s.Name })
}

// Find finds a section by one of its names. whole excludes abbreviations of up to three letters, which may be a
// proxy's name.
func Find(name string, whole bool) (envoyadmin.Section, bool) {
	name = strings.ToLower(name)
	for _, s := range Sections {
		if s.Name == name || slices.Contains(s.aliases, name) && (!whole || len(name) > 3) {
			return s.Section, true
		}
	}
	return "", false
}

// IsSection reports whether a name is one of a section.
func IsSection(name string) bool {
	_, ok := Find(name, false)
	return ok
}

// SectionAndProxy tells which of two arguments is the section: in istioctl it is the first, here it may be either.
func SectionAndProxy(a []string) (section envoyadmin.Section, proxy string, err error) {
	if s, ok := Find(a[1], true); ok {
		return s, a[0], nil
	}
	if s, ok := Find(a[0], false); ok {
		return s, a[1], nil
	}
	if s, ok := Find(a[1], false); ok {
		return s, a[0], nil
	}
	for _, i := range []int{1, 0} {
		if near := nearest.Name(a[i], longNames()); near != "" {
			found, _ := Find(near, true)
			meant := slices.Clone(a)
			meant[i] = Title(found)
			return "", "", fmt.Errorf("%q cannot be shown; did you mean `fairlead proxy-config %s`?", a[i], strings.Join(meant, " "))
		}
	}
	return "", "", fmt.Errorf("neither %q nor %q can be shown; choose one of %s", a[0], a[1], strings.Join(SectionNames(), ", "))
}

// longNames lists the sections' names of more than three letters.
func longNames() (names []string) {
	for _, s := range Sections {
		for _, name := range append([]string{s.Name}, s.aliases...) {
			if len(name) > 3 {
				names = append(names, name)
			}
		}
	}
	return names
}

// Title is a section's full name.
func Title(section envoyadmin.Section) string {
	for _, s := range Sections {
		if s.Section == section {
			return s.Name
		}
	}
	return string(section)
}
