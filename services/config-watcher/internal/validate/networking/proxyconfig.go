package networking

import networkingv1beta1 "istio.io/api/networking/v1beta1"

func (c Checker) proxyConfig(p *networkingv1beta1.ProxyConfig) {
	c.Selector("spec.selector.matchLabels", p.GetSelector() != nil, p.GetSelector().GetMatchLabels())
	if p.GetConcurrency() != nil {
		c.NotNegative("spec.concurrency", p.GetConcurrency().GetValue())
	}
}
