package share

import (
	"slices"
	"testing"
)

func TestAGroupDividesItsShareByItsWeights(t *testing.T) {
	for name, tc := range map[string]struct {
		group   []Endpoint
		percent uint32
		want    []uint32
	}{
		"one":            {[]Endpoint{{Ready: true}}, 25, []uint32{2_500_000}},
		"by weights":     {[]Endpoint{{1, true}, {3, true}}, 40, []uint32{1_000_000, 3_000_000}},
		"one is away":    {[]Endpoint{{1, true}, {3, false}}, 10, []uint32{1_000_000, 3_000_000}},
		"none is ready":  {[]Endpoint{{1, false}, {1, false}}, 10, []uint32{500_000, 500_000}},
		"none":           {nil, 10, []uint32{}},
		"never less":     {[]Endpoint{{1, true}, {1 << 31, true}}, 1, []uint32{1, 99_999}},
		"never too much": {[]Endpoint{{1, true}, {1 << 31, false}}, 99, []uint32{9_900_000, total}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := Weights(tc.group, tc.percent); !slices.Equal(got, tc.want) {
				t.Errorf("weights %v, want %v", got, tc.want)
			}
		})
	}
}
