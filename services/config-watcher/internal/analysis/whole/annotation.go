package whole

import (
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"istio.io/api/annotation"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/yaml"

	"fairlead.dev/pkg/nearest"
	"fairlead.dev/services/config-watcher/internal/analysis/finding"
	"fairlead.dev/services/config-watcher/internal/manifest"
	"fairlead.dev/services/config-watcher/internal/validate/meshconfig"
)

// istioAnnotations are Istio's annotations by name, from istio.io/api.
var istioAnnotations = func() map[string]*annotation.Instance {
	out := map[string]*annotation.Instance{}
	for _, a := range annotation.AllResourceAnnotations() {
		out[a.Name] = a
	}
	return out
}()

// ownDomains are domains below istio.io whose annotations Istio's own programs write, and none of istio.io/api lists.
var ownDomains = []string{"operator.istio.io", "install.operator.istio.io", "internal.istio.io", "installer.istio.io", "ambient.istio.io"}

// checkAnnotations finds annotations of Istio that are unknown, on the wrong kind of object, without a usable value,
// or deprecated.
func checkAnnotations(r *run) {
	for _, o := range r.objects {
		switch {
		case o.Key.Group == groupCRD, o.Key.Group == groupAdmission, o.Key.Namespace == r.settings.GetRootNamespace() && o.Key.Kind != "Pod":
			continue // written by installers
		}
		r.annotations(o, "metadata.annotations", o.Key.Kind, o.Annotations)
		if t, ok := o.Body.(*template); ok {
			w := workload{Object: o}
			r.annotations(o, w.path("metadata.annotations"), "Pod", t.Annotations)
		}
	}
}

func (r *run) annotations(o *Object, path, kind string, all map[string]string) {
	for _, name := range slices.Sorted(maps.Keys(all)) {
		domain, _, _ := strings.Cut(name, "/")
		if name == suppressAnnotation || domain != "istio.io" && !strings.HasSuffix(domain, ".istio.io") || slices.Contains(ownDomains, domain) {
			continue
		}
		field := manifest.Field(path, name)
		known := istioAnnotations[name]
		if known == nil {
			r.report(o, finding.AnnotationUnknown, field, all[name], "is no annotation of Istio",
				"remove it"+nearest.Hint(name, slices.Sorted(maps.Keys(istioAnnotations))))
			continue
		}
		if on := kindsOf(known); !slices.Contains(on, "Any") && !slices.Contains(on, kind) {
			r.report(o, finding.AnnotationMisplaced, field, all[name], "has no effect on a "+kind, "put it on "+strings.Join(on, " or "))
		} else if problem := wrongValue(name, all[name]); problem != "" {
			r.report(o, finding.AnnotationInvalid, field, all[name], problem, "correct it, or remove the annotation")
		}
		if known.Deprecated {
			r.report(o, finding.AnnotationDeprecated, field, nil, "is deprecated", "see what Istio's reference of annotations names instead")
		}
	}
}

func kindsOf(a *annotation.Instance) []string {
	var out []string
	for _, kind := range a.Resources {
		out = append(out, kind.String())
	}
	return out
}

// wrongValue says what is wrong with the value of an annotation; "" if nothing is.
func wrongValue(name, value string) string {
	check := annotationValues[name]
	if check == nil {
		return ""
	}
	return check(value)
}

// annotationValues check the values of annotations.
var annotationValues = map[string]func(string) string{
	annotation.SidecarInject.Name:                             isBool,
	annotation.SidecarRewriteAppHTTPProbers.Name:              isBool,
	annotation.SidecarNativeSidecar.Name:                      isBool,
	annotation.PrometheusMergeMetrics.Name:                    isBool,
	annotation.SidecarTrafficIncludeInboundPorts.Name:         ports(true),
	annotation.SidecarTrafficExcludeInboundPorts.Name:         ports(false),
	annotation.SidecarTrafficIncludeOutboundPorts.Name:        ports(true),
	annotation.SidecarTrafficExcludeOutboundPorts.Name:        ports(false),
	annotation.SidecarStatusReadinessApplicationPorts.Name:    ports(false),
	annotation.SidecarTrafficIncludeOutboundIPRanges.Name:     ranges,
	annotation.SidecarTrafficExcludeOutboundIPRanges.Name:     ranges,
	annotation.SidecarStatusPort.Name:                         isPort,
	annotation.SidecarProxyCPU.Name:                           isQuantity,
	annotation.SidecarProxyCPULimit.Name:                      isQuantity,
	annotation.SidecarProxyMemory.Name:                        isQuantity,
	annotation.SidecarProxyMemoryLimit.Name:                   isQuantity,
	annotation.SidecarInterceptionMode.Name:                   oneOf("REDIRECT", "TPROXY", "NONE"),
	annotation.SidecarStatusReadinessFailureThreshold.Name:    isNumber,
	annotation.SidecarStatusReadinessPeriodSeconds.Name:       isNumber,
	annotation.SidecarStatusReadinessInitialDelaySeconds.Name: isNumber,
	annotation.ProxyConfig.Name:                               isProxyConfig,
}

func isBool(s string) string {
	if _, err := strconv.ParseBool(s); err != nil {
		return "is neither true nor false"
	}
	return ""
}

func isNumber(s string) string {
	if _, err := strconv.ParseUint(s, 10, 31); err != nil {
		return "is no whole number"
	}
	return ""
}

func isPort(s string) string {
	if n, err := strconv.ParseUint(strings.TrimSpace(s), 10, 16); err != nil || n == 0 && s != "0" {
		return strconv.Quote(s) + " is no port"
	}
	return ""
}

func isQuantity(s string) string {
	if _, err := resource.ParseQuantity(s); err != nil {
		return `is no quantity such as "100m" or "128Mi"`
	}
	return ""
}

func ports(wildcard bool) func(string) string {
	return func(s string) string {
		if s == "" || wildcard && s == "*" {
			return ""
		}
		for _, port := range strings.Split(s, ",") {
			if problem := isPort(port); problem != "" {
				return problem
			}
		}
		return ""
	}
}

func ranges(s string) string {
	if s == "" || s == "*" {
		return ""
	}
	for _, cidr := range strings.Split(s, ",") {
		if _, err := netip.ParsePrefix(strings.TrimSpace(cidr)); err != nil {
			return strconv.Quote(cidr) + ` is no range such as "10.0.0.0/8"`
		}
	}
	return ""
}

func oneOf(values ...string) func(string) string {
	return func(s string) string {
		if slices.Contains(values, s) {
			return ""
		}
		return "is none of " + strings.Join(values, ", ")
	}
}

func isProxyConfig(s string) string {
	text, err := yaml.YAMLToJSON([]byte(s))
	if err != nil {
		return "is no YAML"
	}
	if _, _, problems := meshconfig.Parse("", append(append([]byte(`{"defaultConfig": `), text...), '}')); len(problems) > 0 {
		return "is no ProxyConfig: " + strings.TrimPrefix(problems[0].Field, "defaultConfig.") + ": " + problems[0].Description()
	}
	return ""
}
