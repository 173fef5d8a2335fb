package proxyname_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"fairlead.dev/services/installer/internal/proxyname"
)

// proxies are the candidates; only web's has a Workload.
var proxies = []proxyname.Proxy{
	{Name: "web-1", Namespace: "shop", Workload: "web"},
	{Name: "web-0", Namespace: "shop", Workload: "web"},
	{Name: "web-0", Namespace: "test", Workload: "web"},
	{Name: "web-01", Namespace: "test", Workload: "web-0"},
	{Name: "cart-7d4b9c6f5-x2x9k", Namespace: "shop"},
	{Name: "cart-db-0", Namespace: "shop"},
}

func TestFind(t *testing.T) {
	for name, tc := range map[string]struct {
		text, namespace string
		want            []string
	}{
		"whole":                               {"web-0.shop", "", []string{"web-0.shop"}},
		"name":                                {"web-1", "", []string{"web-1.shop"}},
		"a whole name before longer ones":     {"web-0", "test", []string{"web-0.test"}},
		"name in two namespaces":              {"web-0", "", []string{"web-0.shop", "web-0.test"}},
		"beginning":                           {"web", "shop", []string{"web-1.shop", "web-0.shop"}},
		"Pod":                                 {"pod/web-0", "shop", []string{"web-0.shop"}},
		"Pod with namespace":                  {"pods/web-0.test", "", []string{"web-0.test"}},
		"Deployment":                          {"deploy/web", "shop", []string{"web-1.shop", "web-0.shop"}},
		"Deployment with namespace":           {"deployment/web.test", "", []string{"web-0.test"}},
		"Deployment by its Pods' names":       {"deploy/cart", "", []string{"cart-7d4b9c6f5-x2x9k.shop"}},
		"Deployment by its Pods' short names": {"deploy/cart-db", "shop", []string{"cart-db-0.shop"}},
	} {
		t.Run(name, func(t *testing.T) {
			w, err := proxyname.Parse(tc.text, tc.namespace)
			if err != nil {
				t.Fatal(err)
			}
			found, err := w.Find(proxies)
			var got []string
			for _, i := range found {
				got = append(got, proxies[i].ID())
			}
			if err != nil || !slices.Equal(got, tc.want) {
				t.Errorf("%v, %v; want %v", got, err, tc.want)
			}
		})
	}
}

func TestOne(t *testing.T) {
	one := func(text string, all []proxyname.Proxy) (string, error) {
		w, err := proxyname.Parse(text, "")
		if err != nil {
			t.Fatal(err)
		}
		i, err := w.One(all)
		if err != nil {
			return "", err
		}
		return all[i].ID(), nil
	}
	if got, err := one("deploy/web.shop", proxies); got != "web-0.shop" {
		t.Errorf("of a Deployment: %q, %v", got, err)
	}
	if ambiguous := new(proxyname.AmbiguousError); true {
		if got, err := one("web", proxies); !errors.As(err, &ambiguous) || len(ambiguous.Matches) != 4 {
			t.Errorf("%q, %v", got, err)
		}
	}
	streams := []proxyname.Proxy{{Name: "grpc-0", Namespace: "shop"}, {Name: "grpc-0", Namespace: "shop"}}
	if got, err := one("grpc", streams); got != "grpc-0.shop" {
		t.Errorf("streams of one Pod: %q, %v", got, err)
	}
}

func TestNotFound(t *testing.T) {
	for text, says := range map[string]string{
		"wbe-1":           `did you mean "web-1.shop"?`,
		"web-0.tset":      `did you mean "web-0.test"?`,
		"deploy/webb":     `did you mean "deploy/web"?`,
		"something-other": "there are cart-7d4b9c6f5-x2x9k.shop, cart-db-0.shop, web-0.shop",
	} {
		w, err := proxyname.Parse(text, "")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Find(proxies); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, want %s", text, err, says)
		}
	}
	w, _ := proxyname.Parse("web-0", "elsewhere")
	if _, err := w.Find(proxies); err == nil || !strings.Contains(err.Error(), `in namespace "elsewhere"`) {
		t.Error(err)
	}
	var many []proxyname.Proxy
	for i := range 100 {
		many = append(many, proxyname.Proxy{Name: fmt.Sprintf("p%02d", i), Namespace: "x"})
	}
	w, _ = proxyname.Parse("something-other", "")
	if _, err := w.Find(many); err == nil || !strings.Contains(err.Error(), "p11.x and 88 more") {
		t.Error(err)
	}
	for _, text := range []string{"", "pod/", "svc/web"} {
		if _, err := proxyname.Parse(text, ""); err == nil {
			t.Errorf("%q is accepted", text)
		}
	}
}
