package validate

import (
	"fmt"
	"net/netip"
	"regexp"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"fairlead.dev/services/installer/internal/install/profile"
	"fairlead.dev/services/installer/internal/install/tree"
)

// The characters of image references: distribution's grammar, and what registries take.
var (
	hubPattern = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?(:[0-9]+)?(/[a-z0-9]+([._-]+[a-z0-9]+)*)*/?$`)
	tagPattern = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}$`)
)

// rules checks fields whose types are right.
func (c *checker) rules(spec tree.Map, mapping *profile.Mapping) {
	// The package's values may hold an empty hub or tag; a user who writes one means something else.
	for _, field := range []string{"hub", "tag"} {
		if spec[field] == "" {
			c.refuse([]string{field}, "it is empty, and images without it have no valid name; write one, or leave it out")
		}
	}
	c.image(nil, spec)
	c.image([]string{"values", "global"}, tree.GetMap(spec, "values", "global"))
	for _, keys := range [][]string{{"revision"}, {"values", "revision"}} {
		if r := tree.GetString(spec, keys...); r != "" {
			if problems := validation.IsDNS1123Label(strings.ToLower(r)); len(problems) > 0 {
				c.refuse(keys, "%q is no revision: it becomes part of names, so it consists of letters, digits and dashes", short(r))
			}
		}
	}
	for i := range mapping.Components {
		m := &mapping.Components[i]
		labels := append(append([]string{"values"}, m.RootPath()...), "labels")
		if _, ok := tree.Get(spec, labels...); ok && m.List {
			c.warn(labels, "it has no effect; write label of the item of components.%s", m.Name)
		}
		switch v := tree.GetMap(spec, "components")[m.Name].(type) {
		case tree.Map:
			c.part(spec, []string{"components", m.Name}, v, m)
		case []any:
			c.parts(spec, v, m)
		}
	}
	c.settings(spec, mapping)
	c.networks(tree.GetMap(spec, "values", "global", "proxy"))
	if v, ok := spec["installPackagePath"].(string); ok && v != "" {
		c.warn([]string{"installPackagePath"}, "it has no effect; name the install package with --manifests")
	}
}

// parts checks the components of a list: each enabled one has a name of its own.
func (c *checker) parts(spec tree.Map, list []any, m *profile.Component) {
	seen := map[string]int{}
	for i, item := range list {
		keys := []string{"components", m.Name, strconv.Itoa(i)}
		part, _ := item.(tree.Map)
		if enabled, ok := part["enabled"].(bool); ok && !enabled {
			continue
		}
		name := tree.GetString(part, "name")
		other, twice := seen[name+"/"+tree.GetString(part, "namespace")]
		switch {
		case name == "":
			c.refuse(below(keys, "name"), "an enabled item needs a name")
		case len(validation.IsDNS1123Subdomain(name)) > 0:
			c.refuse(below(keys, "name"), "%q is no name of an object", short(name))
		case twice:
			c.refuse(below(keys, "name"), "%q is the name of item %d, too", name, other)
		}
		seen[name+"/"+tree.GetString(part, "namespace")] = i
		c.part(spec, keys, part, m)
	}
}

func (c *checker) part(spec tree.Map, keys []string, part tree.Map, m *profile.Component) {
	c.image(keys, part)
	if ns := tree.GetString(part, "namespace"); ns != "" && len(validation.IsDNS1123Label(ns)) > 0 {
		c.refuse(below(keys, "namespace"), "%q is no name of a namespace", short(ns))
	}
	pdb := tree.GetMap(part, "k8s", "podDisruptionBudget")
	if pdb["minAvailable"] != nil && pdb["maxUnavailable"] != nil {
		c.refuse(below(keys, "k8s", "podDisruptionBudget"), "minAvailable and maxUnavailable exclude each other; write one of them")
	}
	if m.List {
		c.ports(below(keys, "k8s", "service", "ports"), spec, part, m)
	}
}

// ports refuses ports below 1024 of a gateway that does not run as root: it could not listen there.
func (c *checker) ports(keys []string, spec, part tree.Map, m *profile.Component) {
	if root, _ := tree.Get(tree.GetMap(spec, "values"), append(m.RootPath(), "runAsRoot")...); root == true {
		return
	}
	v, _ := tree.Get(part, "k8s", "service", "ports")
	list, _ := v.([]any)
	for i, item := range list {
		port, _ := item.(tree.Map)
		target := port["targetPort"]
		if target == nil {
			target = port["port"]
		}
		if n, ok := target.(float64); ok && n < 1024 && n > 0 {
			c.refuse(below(keys, strconv.Itoa(i), "targetPort"),
				"%v is below 1024, where only root may listen; set targetPort above it, or values.%s.runAsRoot", n, m.Root)
		}
	}
}

// image checks hub, tag and variant of a mapping.
func (c *checker) image(keys []string, at tree.Map) {
	if hub := tree.GetString(at, "hub"); hub != "" && !hubPattern.MatchString(hub) {
		c.refuse(below(keys, "hub"), "%q is no registry with a path, such as registry.example.com/mesh", short(hub))
	}
	switch tag := at["tag"].(type) {
	case nil:
	case string, float64:
		if text := fmt.Sprint(tag); text != "" && !tagPattern.MatchString(text) {
			c.refuse(below(keys, "tag"), "%q is no tag of an image: letters, digits, dots, dashes and underscores, at most 128", short(text))
		}
	default:
		c.wrong(below(keys, "tag"), tag, "a string")
	}
	if variant := tree.GetString(at, "variant"); variant != "" && !tagPattern.MatchString(variant) {
		c.refuse(below(keys, "variant"), "%q is no variant of an image, such as distroless", short(variant))
	}
}

// networks checks the lists of networks and ports that are redirected.
func (c *checker) networks(proxy tree.Map) {
	for _, field := range []string{"includeIPRanges", "excludeIPRanges"} {
		for _, text := range listOf(proxy, field) {
			if _, err := netip.ParsePrefix(text); err != nil && text != "*" {
				c.refuse([]string{"values", "global", "proxy", field}, "%q is no network, such as 10.0.0.0/8", short(text))
			}
		}
	}
	for _, field := range []string{"includeInboundPorts", "excludeInboundPorts", "includeOutboundPorts", "excludeOutboundPorts"} {
		for _, text := range listOf(proxy, field) {
			if n, err := strconv.Atoi(text); (err != nil || n < 0 || n > 65535) && text != "*" {
				c.refuse([]string{"values", "global", "proxy", field}, "%q is no port", short(text))
			}
		}
	}
}

// listOf divides a list that is written as text with commas.
func listOf(at tree.Map, field string) []string {
	text := tree.GetString(at, field)
	if text == "" {
		return nil
	}
	return strings.Split(text, ",")
}
