package validate

import (
	telemetry "istio.io/api/telemetry/v1alpha1"

	"fairlead.dev/services/config-watcher/internal/object"
)

// checkTelemetry follows https://istio.io/latest/docs/reference/config/telemetry/. It does not parse the expressions of
// filters, because nothing evaluates them.
func checkTelemetry(c *checker, _ *object.Object, t *telemetry.Telemetry) {
	c.attached(t.Selector, t.TargetRef, t.TargetRefs)
	for i, l := range t.AccessLogging {
		c.providers(index("spec.accessLogging", i), l.Providers)
	}
	for at, l := range each("spec.tracing", t.Tracing) {
		c.providers(at, l.Providers)
		if p := l.RandomSamplingPercentage; p != nil {
			c.percent(at+".randomSamplingPercentage", p.Value)
		}
		for _, name := range sortedKeys(l.CustomTags) {
			c.customTag(field(at+".customTags", name), name, l.CustomTags[name])
		}
	}
	for at, m := range each("spec.metrics", t.Metrics) {
		c.providers(at, m.Providers)
		for j, o := range m.Overrides {
			c.metricsOverride(index(at+".overrides", j), o)
		}
	}
}

func (c *checker) providers(at string, list []*telemetry.ProviderRef) {
	for i, p := range list {
		c.failIf(p.Name == "", index(at+".providers", i)+".name", nil, "missing", "name one of MeshConfig's extensionProviders")
	}
}

func (c *checker) customTag(at, name string, tag *telemetry.Tracing_CustomTag) {
	c.failIf(name == "", at, nil, "tag has no name", "name it")
	switch t := tag.GetType().(type) {
	case *telemetry.Tracing_CustomTag_Literal:
		c.failIf(t.Literal.GetValue() == "", at+".literal.value", nil, "missing", "write the tag's value")
	case *telemetry.Tracing_CustomTag_Header:
		c.failIf(t.Header.GetName() == "", at+".header.name", nil, "missing", "name the header")
	case *telemetry.Tracing_CustomTag_Environment:
		c.failIf(t.Environment.GetName() == "", at+".environment.name", nil, "missing", "name the variable")
	}
}

func (c *checker) metricsOverride(at string, o *telemetry.MetricsOverrides) {
	if m, ok := o.GetMatch().GetMetricMatch().(*telemetry.MetricSelector_CustomMetric); ok && m.CustomMetric == "" {
		c.fail(at+".match.customMetric", nil, "missing", "name the metric")
	}
	for _, name := range sortedKeys(o.TagOverrides) {
		at := field(at+".tagOverrides", name)
		switch tag := o.TagOverrides[name]; {
		case tag.GetOperation() == telemetry.MetricsOverrides_TagOverride_UPSERT && tag.GetValue() == "":
			c.fail(at+".value", nil, "missing for operation UPSERT", "write the tag's value, or use REMOVE")
		case tag.GetOperation() == telemetry.MetricsOverrides_TagOverride_REMOVE && tag.GetValue() != "":
			c.fail(at+".value", tag.Value, "has no meaning for operation REMOVE", "remove it")
		}
	}
}
