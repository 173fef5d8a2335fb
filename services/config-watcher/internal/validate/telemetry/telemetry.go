// Package telemetry has the rules of the kinds of group telemetry.istio.io.
package telemetry

import (
	"maps"
	"slices"

	telemetry "istio.io/api/telemetry/v1alpha1"

	"fairlead.dev/services/config-watcher/internal/manifest"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/validate/check"
)

type checker struct{ *check.Checker }

// Check applies the rules of the object's kind.
func Check(base *check.Checker, o *object.Object) {
	if t, ok := o.Body.(*telemetry.Telemetry); ok {
		checker{base}.telemetry(t)
	}
}

// telemetry follows https://istio.io/latest/docs/reference/config/telemetry/. It does not parse the expressions of
// filters, because nothing evaluates them.
func (c checker) telemetry(t *telemetry.Telemetry) {
	c.Attached(t.Selector, t.TargetRef, t.TargetRefs)
	for i, l := range t.AccessLogging {
		c.providers(manifest.Index("spec.accessLogging", i), l.Providers)
	}
	for at, l := range manifest.Items("spec.tracing", t.Tracing) {
		c.providers(at, l.Providers)
		if p := l.RandomSamplingPercentage; p != nil {
			c.Percent(at+".randomSamplingPercentage", p.Value)
		}
		for _, name := range slices.Sorted(maps.Keys(l.CustomTags)) {
			c.customTag(manifest.Field(at+".customTags", name), name, l.CustomTags[name])
		}
	}
	for at, m := range manifest.Items("spec.metrics", t.Metrics) {
		c.providers(at, m.Providers)
		for j, o := range m.Overrides {
			c.metricsOverride(manifest.Index(at+".overrides", j), o)
		}
	}
}

func (c checker) providers(at string, list []*telemetry.ProviderRef) {
	for i, p := range list {
		c.FailIf(p.Name == "", manifest.Index(at+".providers", i)+".name", nil, "missing", "name one of MeshConfig's extensionProviders")
	}
}

func (c checker) customTag(at, name string, tag *telemetry.Tracing_CustomTag) {
	c.FailIf(name == "", at, nil, "tag has no name", "name it")
	switch t := tag.GetType().(type) {
	case *telemetry.Tracing_CustomTag_Literal:
		c.FailIf(t.Literal.GetValue() == "", at+".literal.value", nil, "missing", "write the tag's value")
	case *telemetry.Tracing_CustomTag_Header:
		c.FailIf(t.Header.GetName() == "", at+".header.name", nil, "missing", "name the header")
	case *telemetry.Tracing_CustomTag_Environment:
		c.FailIf(t.Environment.GetName() == "", at+".environment.name", nil, "missing", "name the variable")
	}
}

func (c checker) metricsOverride(at string, o *telemetry.MetricsOverrides) {
	if m, ok := o.GetMatch().GetMetricMatch().(*telemetry.MetricSelector_CustomMetric); ok && m.CustomMetric == "" {
		c.Fail(at+".match.customMetric", nil, "missing", "name the metric")
	}
	for _, name := range slices.Sorted(maps.Keys(o.TagOverrides)) {
		at := manifest.Field(at+".tagOverrides", name)
		switch tag := o.TagOverrides[name]; {
		case tag.GetOperation() == telemetry.MetricsOverrides_TagOverride_UPSERT && tag.GetValue() == "":
			c.Fail(at+".value", nil, "missing for operation UPSERT", "write the tag's value, or use REMOVE")
		case tag.GetOperation() == telemetry.MetricsOverrides_TagOverride_REMOVE && tag.GetValue() != "":
			c.Fail(at+".value", tag.Value, "has no meaning for operation REMOVE", "remove it")
		}
	}
}
