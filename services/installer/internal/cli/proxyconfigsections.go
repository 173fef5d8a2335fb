package cli

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
	// nameTables are the name tables (NDS) of agents' DNS proxies; only xds-servers show them.
	nameTables envoyadmin.Section = "NameTables"
	allSections,
	logLevels envoyadmin.Section = "All", "Log"
)

// sectionName is a section with its names: our plural, and istioctl's names and abbreviations as aliases.
type sectionName struct {
	section envoyadmin.Section
	name    string
	aliases []string
	about   string
}

var sections = []sectionName{
	{envoyadmin.Clusters, "clusters", []string{"cluster", "c", "cds"}, "clusters: destinations, subsets"},
	{envoyadmin.Listeners, "listeners", []string{"listener", "l", "lds"}, "listeners, with their filter chains"},
	{envoyadmin.Routes, "routes", []string{"route", "r", "rds"}, "routes, with destinations and their shares"},
	{envoyadmin.VirtualHosts, "virtualhosts", []string{"virtualhost", "vhosts", "vhost", "vh"},
		"virtual hosts, with the objects they are made from"},
	{envoyadmin.Endpoints, "endpoints", []string{"endpoint", "ep", "eds"}, "endpoints, with their health"},
	{envoyadmin.Secrets, "secrets", []string{"secret", "s", "sds"}, "certificates, with their dates; never a private key"},
	{envoyadmin.Extensions, "ecds", []string{"ec", "extensions", "extension"}, "extension configs"},
	{envoyadmin.Bootstrap, "bootstrap", []string{"b", "bootstraps"}, "what the proxy was started with"},
	{nameTables, "nametables", []string{"nametable", "nds"}, "what the agent answers DNS queries from; with --served"},
	{allSections, "all", []string{"a"}, "all of them"},
	{logLevels, "log", []string{"o", "logs"}, "log levels; --level and --reset change them"},
}

// sectionNames lists the sections' full names.
func sectionNames() []string {
	return lists.Map(sections, func(s sectionName) string { return s.name })
}

// findSection finds a section by one of its names. whole excludes abbreviations of up to three letters, which may be a
// proxy's name.
func findSection(name string, whole bool) (envoyadmin.Section, bool) {
	name = strings.ToLower(name)
	for _, s := range sections {
		if s.name == name || slices.Contains(s.aliases, name) && (!whole || len(name) > 3) {
			return s.section, true
		}
	}
	return "", false
}

// sectionAndProxy tells which of two arguments is the section: in istioctl it is the first, here it may be either.
func sectionAndProxy(a []string) (section envoyadmin.Section, proxy string, err error) {
	if s, ok := findSection(a[1], true); ok {
		return s, a[0], nil
	}
	if s, ok := findSection(a[0], false); ok {
		return s, a[1], nil
	}
	if s, ok := findSection(a[1], false); ok {
		return s, a[0], nil
	}
	for _, i := range []int{1, 0} {
		if near := nearest.Name(a[i], longNames()); near != "" {
			found, _ := findSection(near, true)
			meant := slices.Clone(a)
			meant[i] = title(found)
			return "", "", fmt.Errorf("%q cannot be shown; did you mean `fairlead proxy-config %s`?", a[i], strings.Join(meant, " "))
		}
	}
	return "", "", fmt.Errorf("neither %q nor %q can be shown; choose one of %s", a[0], a[1], strings.Join(sectionNames(), ", "))
}

// longNames lists the sections' names of more than three letters.
func longNames() (names []string) {
	for _, s := range sections {
		for _, name := range append([]string{s.name}, s.aliases...) {
			if len(name) > 3 {
				names = append(names, name)
			}
		}
	}
	return names
}

// title is a section's full name.
func title(section envoyadmin.Section) string {
	for _, s := range sections {
		if s.section == section {
			return s.name
		}
	}
	return string(section)
}
