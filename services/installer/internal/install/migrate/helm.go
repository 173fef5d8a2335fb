package migrate

import (
	"fmt"
	"slices"
	"strings"

	"fairlead.dev/pkg/nearest"
	"fairlead.dev/services/installer/internal/install/profile"
	"fairlead.dev/services/installer/internal/install/tree"
)

// Chart names one of Istio's Helm charts.
type Chart string

// Istio's charts.
const (
	Istiod  Chart = "istiod"
	Base    Chart = "base"
	CNI     Chart = "cni"
	Ztunnel Chart = "ztunnel"
	Gateway Chart = "gateway"
)

// Charts lists their names.
var Charts = []string{string(Base), string(Istiod), string(CNI), string(Ztunnel), string(Gateway)}

// Values are the values of one release of a chart.
type Values struct {
	// File is for warnings.
	File  string
	Chart Chart
	Tree  tree.Map
}

// own are the values that a chart shares with others, or that are at the same place in the values of a spec. Others
// belong to the chart alone, and are below its root in the values of a spec.
var own = map[Chart]struct {
	component, root string
	shared          []string
}{
	Base: {"base", "", nil},
	Istiod: {"pilot", "pilot", []string{
		"base", "compatibilityVersion", "defaultRevision", "experimental", "gatewayClasses", "gateways", "global", "istiodRemote", "meshConfig",
		"ownerName", "pilot", "profile", "revision", "revisionTags", "sidecarInjectorWebhook", "telemetry", "ztunnel",
	}},
	CNI:     {"cni", "cni", []string{"cni", "compatibilityVersion", "global", "ownerName", "profile", "revision"}},
	Ztunnel: {"ztunnel", "ztunnel", []string{"ztunnel"}},
}

// IsOperator tells an IstioOperator, or its bare spec, from the values of a chart.
func IsOperator(values tree.Map) bool {
	for _, field := range []string{"apiVersion", "components", "spec", "values", "unvalidatedValues", "addonComponents",
		"installPackagePath"} {
		if values[field] != nil {
			return true
		}
	}
	return values["kind"] == "IstioOperator"
}

// Detect finds the chart that a file's values are of.
func Detect(values tree.Map) (Chart, error) {
	has := func(keys ...string) bool {
		return slices.ContainsFunc(keys, func(k string) bool { return values[k] != nil })
	}
	switch {
	case has("pilot", "meshConfig", "sidecarInjectorWebhook", "telemetry", "istiodRemote", "revisionTags", "autoscaleEnabled",
		"traceSampling"):
		return Istiod, nil
	case has("cni", "cniBinDir", "cniConfDir", "cniConfFileName", "chained", "ambient", "repair"):
		return CNI, nil
	case has("service", "autoscaling", "networkGateway", "serviceAccount", "rbac"):
		return Gateway, nil
	case has("base", "enableCRDTemplates"):
		return Base, nil
	case has("global", "defaultRevision", "revision"):
		return Istiod, nil
	}
	return "", fmt.Errorf("which chart its values are of is not clear; write CHART=FILE, with CHART one of %s", strings.Join(Charts, ", "))
}

// ParseChart reads the name of a chart.
func ParseChart(name string) (Chart, error) {
	if !slices.Contains(Charts, name) {
		return "", fmt.Errorf("%q is none of Istio's charts, which are %s%s", name, strings.Join(Charts, ", "), nearest.Hint(name, Charts))
	}
	return Chart(name), nil
}

// Helm migrates the values of charts. The components of the spec are the charts that there are.
func Helm(all []Values, pkg *profile.Package) (*Result, error) {
	r := &Result{Spec: start()}
	values := tree.Map{}
	for _, v := range all {
		if v.Chart == Gateway {
			r.gateway(v)
			continue
		}
		tree.Put(r.Spec, true, "components", own[v.Chart].component, "enabled")
		r.lay(values, r.below(v), v.File, "")
	}
	r.defaults(values, all)
	if more := tree.GetMap(r.Spec, "values"); more != nil { // of gateways
		r.lay(values, more, "the values of the gateways", "")
	}
	if len(values) > 0 {
		r.Spec["values"] = values
	}
	return r, r.again(pkg)
}

// again takes older forms out of the values: enablement, above all. It is what a migration does, and no warning.
func (r *Result) again(pkg *profile.Package) error {
	merged, err := r.merge(pkg)
	if err != nil {
		return err
	}
	r.Spec = merged.User
	for _, text := range merged.Warnings {
		if !strings.Contains(text, "is an older form of") {
			r.warn("%s", text)
		}
	}
	return r.finish(pkg)
}

// below returns the values of a chart where a spec has them.
func (r *Result) below(v Values) tree.Map {
	where := own[v.Chart]
	out, alone := tree.Map{}, tree.Map{}
	for _, key := range tree.Keys(v.Tree) {
		switch value := tree.Copy(v.Tree[key]); {
		case key == "_internal_defaults_do_not_set":
			r.warn("%s: %s is not migrated: it is of the chart itself, and no value to set", v.File, key)
		case key == "platform":
			tree.Put(out, value, "global", "platform")
		case where.root == "" || slices.Contains(where.shared, key):
			out[key] = value
		default:
			alone[key] = value
		}
	}
	if len(alone) > 0 {
		named, _ := out[where.root].(tree.Map)
		out[where.root] = tree.Merge(alone, named) // pilot.env wins over env
	}
	return out
}

// lay lays the values of one chart on those of others. What two charts say differently stays as the first says it.
func (r *Result) lay(onto, values tree.Map, file, path string) {
	for _, key := range tree.Keys(values) {
		at := strings.TrimPrefix(path+"."+key, ".")
		old, ok := onto[key]
		oldMap, isMap := old.(tree.Map)
		newMap, alsoMap := values[key].(tree.Map)
		switch {
		case !ok || old == nil:
			onto[key] = tree.Copy(values[key])
		case isMap && alsoMap:
			r.lay(oldMap, newMap, file, at)
		case fmt.Sprint(old) != fmt.Sprint(values[key]):
			r.warn("%s: %s is %v, and %v in a file before it, which counts: one installation has one", file, at, values[key], old)
		}
	}
}

// defaults says what Helm's charts have where the default profile of an IstioOperator says otherwise.
func (r *Result) defaults(values tree.Map, all []Values) {
	base := slices.ContainsFunc(all, func(v Values) bool { return v.Chart == Base })
	if _, said := values["defaultRevision"]; base && !said {
		values["defaultRevision"] = "default"
	}
}
