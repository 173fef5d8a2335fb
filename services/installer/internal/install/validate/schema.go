package validate

import (
	_ "embed"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"sigs.k8s.io/yaml"

	"fairlead.dev/services/installer/internal/install/tree"
)

//go:embed values.yaml
var valuesText []byte

// valuesSchema has the mappings of values.yaml: name → field → type.
var valuesSchema = sync.OnceValue(func() map[string]map[string]string {
	var s map[string]map[string]string
	if err := yaml.UnmarshalStrict(valuesText, &s); err != nil {
		panic(fmt.Sprintf("values.yaml: %v", err))
	}
	return s
})

func (c *checker) values(v any) {
	if v == nil {
		return
	}
	c.value([]string{"values"}, v, "Values")
}

// value checks a value against a type of values.yaml.
func (c *checker) value(keys []string, v any, typ string) {
	typ, deprecated := strings.CutSuffix(typ, " deprecated")
	if v == nil || typ == "any" {
		return
	}
	if deprecated {
		c.deprecated(keys)
	}
	if item, ok := strings.CutPrefix(typ, "["); ok {
		list, isList := v.([]any)
		if !isList {
			c.wrong(keys, v, "a list")
			return
		}
		for i, x := range list {
			c.value(below(keys, strconv.Itoa(i)), x, strings.TrimSuffix(item, "]"))
		}
		return
	}
	if options, ok := strings.CutPrefix(typ, "enum("); ok {
		c.option(keys, v, strings.Fields(strings.TrimSuffix(options, ")")))
		return
	}
	if fields, ok := valuesSchema()[typ]; ok {
		c.table(keys, v, fields)
		return
	}
	c.plain(keys, v, typ)
}

func (c *checker) table(keys []string, v any, fields map[string]string) {
	table, ok := v.(tree.Map)
	if !ok {
		c.wrong(keys, v, "a mapping")
		return
	}
	for _, k := range tree.Keys(table) {
		if typ, ok := fields[k]; ok {
			c.value(below(keys, k), table[k], typ)
		} else if typ, ok := fields[camel(k)]; ok {
			c.warn(below(keys, k), "charts do not read it under this name; write %s", camel(k))
			c.value(below(keys, k), table[k], typ)
		} else if own := c.own.At(below(keys, k)[1:]...); own != nil {
			c.ownValue(below(keys, k), table[k], own)
		} else {
			known := maps.Clone(fields)
			if own := c.own.At(keys[1:]...); own != nil {
				for name := range own.Properties {
					known[name] = ""
				}
			}
			c.unknown(below(keys, k), slices.Sorted(maps.Keys(known)))
		}
	}
}

// camel gives a name of protobuf's, resource_quotas, its name in JSON. istioctl accepts both.
func camel(name string) string {
	var b strings.Builder
	for i, part := range strings.Split(name, "_") {
		if i > 0 && part != "" {
			part = strings.ToUpper(part[:1]) + part[1:]
		}
		b.WriteString(part)
	}
	return b.String()
}

func (c *checker) option(keys []string, v any, options []string) {
	s, ok := v.(string)
	if !ok || !slices.Contains(options, s) {
		c.wrong(keys, v, "one of "+strings.Join(options, ", "))
	}
}

// plain checks scalars, and mappings of anything.
func (c *checker) plain(keys []string, v any, typ string) {
	switch typ {
	case "bool":
		if _, ok := v.(bool); !ok {
			c.wrong(keys, v, "true or false")
		}
	case "string":
		if _, ok := v.(string); !ok {
			c.wrong(keys, v, "a string; put it between quotes")
		}
	case "uint", "int":
		c.whole(keys, number(v), typ == "uint", 32)
	case "number":
		if _, ok := number(v).(float64); !ok {
			c.wrong(keys, v, "a number")
		}
	case "duration":
		s, _ := v.(string)
		if _, err := time.ParseDuration(s); err != nil {
			c.wrong(keys, v, "a duration, such as 30m")
		}
	case "map":
		if _, ok := v.(tree.Map); !ok {
			c.wrong(keys, v, "a mapping")
		}
	case "texts":
		table, ok := v.(tree.Map)
		if !ok {
			c.wrong(keys, v, "a mapping")
			return
		}
		for _, k := range tree.Keys(table) {
			c.plain(below(keys, k), table[k], "string")
		}
	case "IntOrString":
		switch v.(type) {
		case string, float64:
		default:
			c.wrong(keys, v, "a number or a percentage")
		}
	}
}

// number reads text of digits as a number, as protobuf's JSON does.
func number(v any) any {
	if s, ok := v.(string); ok {
		if f, err := strconv.ParseFloat(s, 64); err == nil {
			return f
		}
	}
	return v
}

// deprecated warns of a value that values.yaml calls deprecated, and names what to write instead if replacement knows
// it.
func (c *checker) deprecated(keys []string) {
	if now := replacement(keys); now != "" {
		c.warn(keys, "it is deprecated; write %s", now)
		return
	}
	c.warn(keys, "it is deprecated, and will be refused one day")
}

// settingOf says which Kubernetes setting took a value's place.
var settingOf = map[string]string{
	"affinity": "affinity", "nodeSelector": "nodeSelector", "podAnnotations": "podAnnotations", "replicaCount": "replicaCount",
	"resources":   "resources",
	"tolerations": "tolerations", "cpu": "hpaSpec", "memory": "hpaSpec", "rollingMaxSurge": "strategy", "rollingMaxUnavailable": "strategy",
	"podAntiAffinityLabelSelector": "affinity", "podAntiAffinityTermLabelSelector": "affinity",
}

// replacement names the field that a deprecated value is to be written to; "" if Istio has none.
func replacement(keys []string) string {
	setting := settingOf[keys[len(keys)-1]]
	switch {
	case setting == "" || len(keys) < 3:
		return ""
	case keys[1] == "pilot" || keys[1] == "cni":
		return "components." + keys[1] + ".k8s." + setting
	case keys[1] == "gateways" && keys[2] == "istio-ingressgateway":
		return "components.ingressGateways[name:istio-ingressgateway].k8s." + setting
	case keys[1] == "gateways" && keys[2] == "istio-egressgateway":
		return "components.egressGateways[name:istio-egressgateway].k8s." + setting
	}
	return ""
}

// ValuesPaths lists the values that Istio has, by their paths below the spec: each that is no mapping of known fields.
func ValuesPaths() []string {
	var paths []string
	var walk func(path, typ string)
	walk = func(path, typ string) {
		fields, ok := valuesSchema()[strings.TrimSuffix(typ, " deprecated")]
		if !ok {
			paths = append(paths, path)
			return
		}
		for _, k := range slices.Sorted(maps.Keys(fields)) {
			walk(path+"."+k, fields[k])
		}
	}
	walk("values", "Values")
	return paths
}
