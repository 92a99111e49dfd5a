package main

import (
	"os"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/stretchr/testify/require"
)

// TestTablesAreWhatTheContractDeclares: every operation has a command or a reason for having none, every command can be
// read, and every column is a property of its schema; otherwise nothing is generated.
func TestTablesAreWhatTheContractDeclares(t *testing.T) {
	t.Parallel()
	doc, err := openapi3.NewLoader().LoadFromFile("../../api/openapi.yaml")
	require.NoError(t, err)
	want, err := generate(doc)
	require.NoError(t, err)
	is, err := os.ReadFile("../../api/verbs.gen.go")
	require.NoError(t, err)
	require.Equal(t, string(want), string(is), "run go generate ./api")
}

func TestMistakesInTheContractAreReported(t *testing.T) {
	t.Parallel()
	const good = `
openapi: 3.0.3
info: {title: t, version: "1"}
paths:
  /v1/things/{thing_id}:
    parameters: [{name: thing_id, in: path, required: true, schema: {type: string}}]
    patch:
      operationId: changeThing
      summary: Change a thing
      x-cli: {use: thing change THING, flags: {colour: paint}, say: 'thing {name}'}
      requestBody: {content: {application/json: {schema: {type: object, properties: {colour: {type: string, description: Its colour}, size: {type: integer, description: Its size}}}}}}
      responses: {'200': {description: ok, content: {application/json: {schema: {$ref: '#/components/schemas/Thing'}}}}}
components:
  schemas:
    Thing:
      type: object
      x-columns: {id: name, list: 'name, made.at', text: {who: 'by {name}'}, more: who, spare: at}
      properties: {name: {type: string}, made: {type: object, properties: {at: {type: string, format: date-time}}}}
`
	for change, want := range map[string]string{
		"": "",
		"x-cli: {use: thing change THING, flags: {colour: paint}, say: 'thing {name}'}=>": "changeThing has neither an x-cli nor a reason",
		"change THING=>change":               "nothing is the path's thing_id",
		"change THING=>change THING OTHER":   "OTHER is no input",
		", description: Its size=>":          "neither its schema nor x-cli describes --size",
		"colour: paint=>color: paint":        "flags names color",
		"colour: paint=>colour: size":        "two inputs have the flag --size",
		"thing {name}=>thing {title}":        `"thing {title}" names title`,
		"use: thing=>uses: 1, use: thing":    `"uses" is none of`,
		"made.at=>made.by":                   "the schema has no made.by",
		"by {name}=>[when? by {name}]":       "depends on when",
		"by {name}=>by {author}":             `"by {author}" names author`,
		"more: who=>more: when":              "the schema has no when",
		"spare: at=>spare: age":              `there is no column "age" to spare`,
		"{id: name,=>{id: name, columns: 1,": `"columns" is none of`,
	} {
		old, replacement, _ := strings.Cut(change, "=>")
		require.Contains(t, good, old)
		doc, err := openapi3.NewLoader().LoadFromData([]byte(strings.Replace(good, old, replacement, 1)))
		require.NoError(t, err, change)
		_, err = generate(doc)
		if want == "" {
			require.NoError(t, err)
			continue
		}
		require.ErrorContains(t, err, want, change)
	}
}
