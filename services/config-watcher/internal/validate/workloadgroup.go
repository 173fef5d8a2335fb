package validate

import (
	"regexp"

	networking "istio.io/api/networking/v1alpha3"

	"fairlead.dev/services/config-watcher/internal/object"
)

var probeHeaderRE = regexp.MustCompile(`^[-A-Za-z0-9]+$`)

// checkWorkloadGroup follows https://istio.io/latest/docs/reference/config/networking/workload-group/. It does not
// check the template: each WorkloadEntry that package registration makes from it is checked.
func checkWorkloadGroup(c *checker, _ *object.Object, wg *networking.WorkloadGroup) {
	c.failIf(wg.Template == nil, "spec.template", nil, "missing", "describe the workloads")
	c.labels("spec.metadata.labels", wg.Metadata.GetLabels())
	if wg.Probe != nil {
		c.readinessProbe("spec.probe", wg.Probe)
	}
}

func (c *checker) readinessProbe(at string, p *networking.ReadinessProbe) {
	for _, n := range []struct {
		name  string
		value int32
	}{
		{"initialDelaySeconds", p.InitialDelaySeconds}, {"timeoutSeconds", p.TimeoutSeconds}, {"periodSeconds", p.PeriodSeconds},
		{"successThreshold", p.SuccessThreshold}, {"failureThreshold", p.FailureThreshold},
	} {
		c.notNegative(at+"."+n.name, n.value)
	}
	switch m := p.HealthCheckMethod.(type) {
	case *networking.ReadinessProbe_HttpGet:
		at += ".httpGet"
		checkPort(c, at+".port", m.HttpGet.GetPort())
		if s := m.HttpGet.GetScheme(); s != "" && s != "HTTP" && s != "HTTPS" {
			c.fail(at+".scheme", s, "unknown scheme", "use HTTP or HTTPS")
		}
		for i, h := range m.HttpGet.GetHttpHeaders() {
			c.failIf(!probeHeaderRE.MatchString(h.Name), index(at+".httpHeaders", i)+".name", h.Name, "not a valid header name",
				"use letters, digits and '-'")
		}
	case *networking.ReadinessProbe_TcpSocket:
		checkPort(c, at+".tcpSocket.port", m.TcpSocket.GetPort())
	case *networking.ReadinessProbe_Exec:
		c.failIf(len(m.Exec.GetCommand()) == 0, at+".exec.command", nil, "missing", "write the command")
	case nil:
		c.fail(at, nil, "no way to probe", "set httpGet, tcpSocket or exec")
	default:
		c.fail(at, nil, "not a way to probe that agents know", "use httpGet, tcpSocket or exec")
	}
}
