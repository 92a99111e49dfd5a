// An issuer for tests: node-oidc-provider, which is certified by the OpenID Foundation, with its own pages. Anybody logs
// in, with any password; carol is in the group ops. Arguments: its directory, and the redirect URL of the client prego.
import { createServer } from 'node:http';
import { pathToFileURL } from 'node:url';

const [directory, redirect] = process.argv.slice(2);
const { default: Provider } = await import(pathToFileURL(`${directory}/node_modules/oidc-provider/lib/index.js`));

const server = createServer((request, response) => answer(request, response));
let answer;
server.listen(0, '127.0.0.1', () => {
  const issuer = `http://127.0.0.1:${server.address().port}`;
  const provider = new Provider(issuer, {
    clients: [{
      client_id: 'prego', token_endpoint_auth_method: 'none', redirect_uris: [redirect], response_types: ['code'],
      grant_types: ['authorization_code', 'urn:ietf:params:oauth:grant-type:device_code'],
    }],
    features: { deviceFlow: { enabled: true } },
    conformIdTokenClaims: false,
    claims: { openid: ['sub'], profile: ['name'], email: ['email', 'email_verified'], groups: ['groups'] },
    findAccount: (_, id) => ({
      accountId: id,
      claims: () => ({ sub: id, name: id, email: `${id}@example.com`, email_verified: true, groups: id === 'carol' ? ['ops'] : [] }),
    }),
  });
  answer = provider.callback();
  console.log(issuer);
});
