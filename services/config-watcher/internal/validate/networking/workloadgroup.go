package networking

import (
	"regexp"

	networking "istio.io/api/networking/v1alpha3"

	"fairlead.dev/services/config-watcher/internal/manifest"
	"fairlead.dev/services/config-watcher/internal/validate/check"
)

var probeHeaderRE = regexp.MustCompile(`^[-A-Za-z0-9]+$`)

// workloadGroup follows https://istio.io/latest/docs/reference/config/networking/workload-group/. It does not
// check the template: each WorkloadEntry that package registration makes from it is checked.
func (c Checker) workloadGroup(wg *networking.WorkloadGroup) {
	c.FailIf(wg.Template == nil, "spec.template", nil, "missing", "describe the workloads")
	c.Labels("spec.metadata.labels", wg.Metadata.GetLabels())
	if wg.Probe != nil {
		c.ReadinessProbe("spec.probe", wg.Probe)
	}
}

// ReadinessProbe checks a probe by which an agent tells the health of its workload.
func (c Checker) ReadinessProbe(at string, p *networking.ReadinessProbe) {
	for _, n := range []struct {
		name  string
		value int32
	}{
		{"initialDelaySeconds", p.InitialDelaySeconds}, {"timeoutSeconds", p.TimeoutSeconds}, {"periodSeconds", p.PeriodSeconds},
		{"successThreshold", p.SuccessThreshold}, {"failureThreshold", p.FailureThreshold},
	} {
		c.NotNegative(at+"."+n.name, n.value)
	}
	switch m := p.HealthCheckMethod.(type) {
	case *networking.ReadinessProbe_HttpGet:
		at += ".httpGet"
		check.Port(c.Verdict, at+".port", m.HttpGet.GetPort())
		if s := m.HttpGet.GetScheme(); s != "" && s != "HTTP" && s != "HTTPS" {
			c.Fail(at+".scheme", s, "unknown scheme", "use HTTP or HTTPS")
		}
		for i, h := range m.HttpGet.GetHttpHeaders() {
			c.FailIf(!probeHeaderRE.MatchString(h.Name), manifest.Index(at+".httpHeaders", i)+".name", h.Name, "not a valid header name",
				"use letters, digits and '-'")
		}
	case *networking.ReadinessProbe_TcpSocket:
		check.Port(c.Verdict, at+".tcpSocket.port", m.TcpSocket.GetPort())
	case *networking.ReadinessProbe_Exec:
		c.FailIf(len(m.Exec.GetCommand()) == 0, at+".exec.command", nil, "missing", "write the command")
	case nil:
		c.Fail(at, nil, "no way to probe", "set httpGet, tcpSocket or exec")
	default:
		c.Fail(at, nil, "not a way to probe that agents know", "use httpGet, tcpSocket or exec")
	}
}
